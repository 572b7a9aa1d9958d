"""Shapes of released models by name, for what needs a model and no weights."""

import pathlib
from typing import Any

from ptjax.models import families, gguf
from ptjax.models.config import DecoderConfig
from ptjax.models.importer import resolve_source

_LLAMA3 = {
  "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192,
}  # fmt: skip

# `config.json` as published, without what the decoder does not read.
PRESETS: dict[str, dict[str, Any]] = {
  "SmolLM2-135M": {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 49_152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 100_000, "tie_word_embeddings": True,
  },
  "Llama-3.1-8B": {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0, "rope_scaling": _LLAMA3,
  },
  "Llama-3.1-70B": {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 8192,
    "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0, "rope_scaling": _LLAMA3,
  },
  "Qwen3-4B": {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936, "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "tie_word_embeddings": True,
  },
  "gemma-2-2b": {
    "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256_000, "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "sliding_window": 4096,
  },
  "gemma-3-4b": {
    "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262_208, "hidden_size": 2560,
    "intermediate_size": 10_240, "num_hidden_layers": 34, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6, "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
  },
  "Mixtral-8x7B": {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 32_000, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
  },
  "Qwen3-30B-A3B": {
    "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151_936, "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
  },
  "gpt-oss-20b": {
    "architectures": ["GptOssForCausalLM"], "vocab_size": 201_088, "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "attention_bias": True,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5, "rope_theta": 150_000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False, "original_max_position_embeddings": 4096},
  },
  "DeepSeek-V3": {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129_280, "hidden_size": 7168,
    "intermediate_size": 18_432, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rope_theta": 10_000, "scoring_func": "sigmoid",
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096},
  },
}  # fmt: skip


def preset(name: str) -> DecoderConfig:
  """The shape of a released model.

  Raises:
    ValueError: an unknown name; the message lists the known ones.
  """
  if name not in PRESETS:
    raise ValueError(f"model {name!r} is unknown; the presets are {', '.join(PRESETS)}")
  return families.config_of(PRESETS[name], pathlib.Path(name))


def shape_of(source: str) -> DecoderConfig:
  """The shape of a model, from no more than its description.

  Args:
    source: a name of `PRESETS`, a `config.json` or the directory that holds it, a .gguf file, or
      `package:NAME`, see `importer.resolve_source`.

  Raises:
    ValueError: none of these, or a model that the decoder does not compute.
  """
  if source in PRESETS:
    return preset(source)
  try:
    path = resolve_source(source)
  except ValueError as error:
    raise ValueError(f"{error}; or a config.json, or one of {', '.join(PRESETS)}") from error
  if path.suffix == ".json":
    path = path.parent
  if path.is_dir():
    return families.decoder_config(path)
  return gguf.decoder_config(gguf.read_header(path))
