"""The families of models: a function each, from `config.json` to the decoder's configuration.

To add one: write its function, name it in `ARCHITECTURES`, teach `weight_map` the tensor names
that differ, and make a fixture with `tests/models/fixtures/make_families.py`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ptjax.models.config import DecoderConfig, LatentConfig, MoeConfig
from ptjax.models.huggingface import read_json
from ptjax.models.rope_config import read_rope
from ptjax.models.rotary import yarn_magnitude


class Raw:
  """A `config.json`, read with checks; the errors name the file and the key."""

  def __init__(self, values: Mapping[str, Any], path: pathlib.Path):
    self.values, self.path = values, path

  def get(self, key: str, default: Any = None) -> Any:
    """The value, or the default where there is none or null."""
    value = self.values.get(key)
    return default if value is None else value

  def number(self, key: str, kind: type = int, default: Any = None) -> Any:
    """A positive number; a float may be written as an integer."""
    value = self.get(key, default)
    if kind is float and type(value) is int:
      value = float(value)
    if type(value) is not kind or not value > 0:
      raise ValueError(f"{self.path}: {key!r} is {value!r}, expected a positive {kind.__name__}")
    return value

  def flag(self, key: str, default: bool = False) -> bool:
    value = self.get(key, default)
    if not isinstance(value, bool):
      raise ValueError(f"{self.path}: {key!r} is {value!r}, expected true or false")
    return value

  def only(self, **expected: Any) -> None:
    """Refuses any other value: the decoder would silently compute another model."""
    for key, value in expected.items():
      if (given := self.values.get(key, value)) != value:
        raise ValueError(f"{self.path}: {key} is {given!r}; only {value!r} is supported")

  def layer_flags(self, key: str, meaning: Mapping[Any, bool], default: list) -> tuple[bool, ...]:
    """One flag a layer from a list such as `layer_types`; () where none is set."""
    given, count = self.get(key, default), self.number("num_hidden_layers")
    if not isinstance(given, list) or len(given) < count or not set(given) <= set(meaning):
      raise ValueError(
        f"{self.path}: {key} is {given!r}, expected one of {list(meaning)} for each of the "
        f"{count} layers"
      )
    flags = tuple(meaning[value] for value in given[:count])
    return flags if any(flags) else ()


_SLIDING = {"full_attention": False, "sliding_attention": True}


def _base(raw: Raw, *, theta: float = 10_000.0, tied: bool = False) -> DecoderConfig:
  """What all families write alike."""
  raw.only(quantization_config=None, partial_rotary_factor=1.0)
  d_model, num_heads = raw.number("hidden_size"), raw.number("num_attention_heads")
  max_position = raw.number("max_position_embeddings")
  rope = read_rope(raw.values, raw.path, theta)
  return DecoderConfig(
    vocab_size=raw.number("vocab_size"),
    d_model=d_model,
    num_layers=raw.number("num_hidden_layers"),
    num_heads=num_heads,
    num_kv_heads=raw.number("num_key_value_heads", default=num_heads),
    head_dim=raw.number("head_dim", default=d_model // num_heads),
    d_ff=raw.number("intermediate_size"),
    rope_theta=rope.theta,
    rope_scaling=rope.scaling,
    norm_eps=raw.number("rms_norm_eps", float),
    tie_embeddings=raw.flag("tie_word_embeddings", tied),
    max_position=max_position,
  )


def _windowed(raw: Raw, c: DecoderConfig, default: list[str]) -> DecoderConfig:
  """With `sliding_window` in the layers that `layer_types` names."""
  sliding = raw.layer_flags("layer_types", _SLIDING, default)
  if not sliding:
    return c
  window = raw.number("sliding_window")
  return dataclasses.replace(c, window=window, sliding=() if all(sliding) else sliding)


def _alternating(num_layers: int, every: int) -> list[str]:
  """Every so many layers one without a window."""
  return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(num_layers)]


def _llama(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", attention_bias=False, mlp_bias=False, sliding_window=None)
  return _base(raw)


def _mistral(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", layer_types=None)
  window = raw.number("sliding_window") if raw.get("sliding_window") is not None else None
  return dataclasses.replace(_base(raw), window=window)


def _smollm3(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", attention_bias=False, mlp_bias=False)
  c = _base(raw, theta=2_000_000.0, tied=True)
  every = raw.number("no_rope_layer_interval", default=4)
  rotates = [int((i + 1) % every != 0) for i in range(c.num_layers)]
  nope = raw.layer_flags("no_rope_layers", {1: False, 0: True}, rotates)
  c = dataclasses.replace(c, nope=nope)
  if not raw.flag("use_sliding_window"):
    return c
  flags = nope or (False,) * c.num_layers
  return _windowed(raw, c, ["sliding_attention" if f else "full_attention" for f in flags])


def _qwen_window(raw: Raw, c: DecoderConfig) -> DecoderConfig:
  if not raw.flag("use_sliding_window"):
    return c
  first = raw.get("max_window_layers", 28)
  kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(c.num_layers)]
  return _windowed(raw, c, kinds)


def _qwen2(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu")
  return dataclasses.replace(_qwen_window(raw, _base(raw)), qkv_bias=True)


def _qwen3(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", attention_bias=False)
  return dataclasses.replace(_qwen_window(raw, _base(raw)), qk_norm=True)


def _gemma(raw: Raw, c: DecoderConfig, every: int) -> DecoderConfig:
  """What Gemma 2 and 3 add to `c`."""
  raw.only(hidden_activation="gelu_pytorch_tanh", attention_bias=False)
  if raw.flag("use_bidirectional_attention"):
    raise ValueError(f"{raw.path}: use_bidirectional_attention is true; only causal models")
  kinds = _alternating(c.num_layers, every)
  return dataclasses.replace(
    _windowed(raw, c, kinds),
    activation="gelu_tanh",
    query_scale=raw.number("query_pre_attn_scalar", default=256) ** -0.5,
    post_norms=True,
    norm_offset=True,
    embed_scale=c.d_model**0.5,
  )


def _cap(raw: Raw, key: str, default: float | None) -> float | None:
  """A soft cap; null in the file is none, a missing key the default."""
  if key in raw.values and raw.values[key] is None:
    return None
  return default if key not in raw.values else raw.number(key, float)


def _gemma2(raw: Raw) -> DecoderConfig:
  return dataclasses.replace(
    _gemma(raw, _base(raw, tied=True), every=2),
    score_cap=_cap(raw, "attn_logit_softcapping", 50.0),
    logit_cap=_cap(raw, "final_logit_softcapping", 30.0),
  )


def _gemma3(raw: Raw) -> DecoderConfig:
  c = _gemma(
    raw,
    _base(raw, theta=1_000_000.0, tied=True),
    every=raw.number("sliding_window_pattern", default=6),
  )
  # `rope_theta` and `rope_scaling` are those of the global layers.
  values = {k: v for k, v in raw.values.items() if k not in ("rope_theta", "rope_scaling")}
  local = read_rope(
    values, raw.path, raw.number("rope_local_base_freq", float, 10_000.0), "sliding_attention"
  )
  if local.scaling is not None:
    raise ValueError(f"{raw.path}: rope scaling {local.options} of sliding layers is not supported")
  return dataclasses.replace(
    c,
    local_rope_theta=local.theta,
    qk_norm=True,
    score_cap=_cap(raw, "attn_logit_softcapping", None),
    logit_cap=_cap(raw, "final_logit_softcapping", None),
  )


def _mixtral(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", sliding_window=None)
  c = _base(raw, theta=1_000_000.0)
  experts, top_k = raw.number("num_local_experts"), raw.number("num_experts_per_tok")
  return dataclasses.replace(c, moe=MoeConfig(experts, top_k, c.d_ff))


def _qwen3_moe(raw: Raw) -> DecoderConfig:
  raw.only(decoder_sparse_step=1)
  if dense := raw.get("mlp_only_layers", []):
    raise ValueError(f"{raw.path}: mlp_only_layers is {dense}; only [] is supported")
  moe = MoeConfig(
    num_experts=raw.number("num_experts" if "num_experts" in raw.values else "num_local_experts"),
    top_k=raw.number("num_experts_per_tok", default=8),
    d_ff=raw.number("moe_intermediate_size"),
    normalize=raw.flag("norm_topk_prob"),
  )
  raw.only(use_sliding_window=False)
  return dataclasses.replace(_qwen3(raw), moe=moe)


def _gpt_oss(raw: Raw) -> DecoderConfig:
  if raw.get("quantization_config"):
    raise ValueError(
      f"{raw.path}: quantization_config {raw.get('quantization_config').get('quant_method')!r}; "
      "dequantise the model to bfloat16 first"
    )
  raw.only(hidden_act="silu", attention_bias=True)
  c = _base(raw, theta=150_000.0)
  kinds = _alternating(c.num_layers, 2)
  moe = MoeConfig(
    num_experts=raw.number("num_local_experts"),
    top_k=raw.number("num_experts_per_tok"),
    d_ff=c.d_ff,
    biases=True,
    swiglu_limit=raw.number("swiglu_limit", float, 7.0),
    swiglu_alpha=raw.number("swiglu_alpha", float, 1.702),
  )
  return dataclasses.replace(
    _windowed(raw, c, kinds), qkv_bias=True, out_bias=True, sinks=True, moe=moe
  )


def _deepseek_v3(raw: Raw) -> DecoderConfig:
  raw.only(hidden_act="silu", attention_bias=False, scoring_func="sigmoid", moe_layer_freq=1)
  latent = LatentConfig(
    query_rank=raw.get("q_lora_rank", 0),
    kv_rank=raw.number("kv_lora_rank"),
    nope_dim=raw.number("qk_nope_head_dim"),
    rope_dim=raw.number("qk_rope_head_dim"),
    value_dim=raw.number("v_head_dim"),
    interleaved=raw.flag("rope_interleave", True),
  )
  moe_d_ff = raw.number("moe_intermediate_size")
  moe = MoeConfig(
    num_experts=raw.number("n_routed_experts"),
    top_k=raw.number("num_experts_per_tok"),
    d_ff=moe_d_ff,
    scoring="sigmoid",
    normalize=raw.flag("norm_topk_prob", True),
    weight_scale=raw.number("routed_scaling_factor", float, 1.0),
    num_groups=raw.number("n_group"),
    top_groups=raw.number("topk_group"),
    shared_d_ff=moe_d_ff * raw.number("n_shared_experts"),
    first_dense=raw.get("first_k_dense_replace", 0),
  )
  head_dim = latent.nope_dim + latent.rope_dim
  scale = head_dim**-0.5
  options = read_rope(raw.values, raw.path).options
  if every := options.get("mscale_all_dim"):
    scale *= yarn_magnitude(options["factor"], every) ** 2
  # `head_dim` in newer files is the rotated part of a head.
  c = _base(Raw({**raw.values, "head_dim": head_dim}, raw.path))
  return dataclasses.replace(c, num_kv_heads=c.num_heads, query_scale=scale, latent=latent, moe=moe)


ARCHITECTURES: dict[str, tuple[str, Callable[[Raw], DecoderConfig]]] = {
  "LlamaForCausalLM": ("llama", _llama),
  "MistralForCausalLM": ("mistral", _mistral),
  "SmolLM3ForCausalLM": ("smollm3", _smollm3),
  "Qwen2ForCausalLM": ("qwen2", _qwen2),
  "Qwen3ForCausalLM": ("qwen3", _qwen3),
  "Gemma2ForCausalLM": ("gemma2", _gemma2),
  "Gemma3ForCausalLM": ("gemma3", _gemma3),
  "MixtralForCausalLM": ("mixtral", _mixtral),
  "Qwen3MoeForCausalLM": ("qwen3_moe", _qwen3_moe),
  "GptOssForCausalLM": ("gpt_oss", _gpt_oss),
  "DeepseekV3ForCausalLM": ("deepseek_v3", _deepseek_v3),
}
"""Family and configuration function of each name in `architectures`."""


def decoder_config(directory: pathlib.Path) -> DecoderConfig:
  """Model config from `config.json`.

  Raises:
    ValueError: missing file or key, another architecture, or a feature that the decoder
      does not compute (such as quantised weights).
  """
  path = directory / "config.json"
  return config_of(read_json(path), path)


def config_of(values: Mapping[str, Any], path: pathlib.Path) -> DecoderConfig:
  """The same from what `config.json` holds; `path` is named in errors."""
  raw = Raw(values, path)
  architectures = raw.get("architectures", [])
  if len(architectures) != 1 or architectures[0] not in ARCHITECTURES:
    raise ValueError(
      f"{path}: architectures {architectures}; use one of {', '.join(ARCHITECTURES)}"
    )
  family, config = ARCHITECTURES[architectures[0]]
  return dataclasses.replace(config(raw), family=family)
