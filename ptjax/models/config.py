"""The shape of a decoder."""

import dataclasses
import json
from typing import Literal

from ptjax.kernels.attention import AUTO, IMPLEMENTATIONS
from ptjax.kernels.context import WAYS
from ptjax.kernels.layout import LAYOUTS, LayoutName
from ptjax.kernels.ring import TRANSFERS, Transfer
from ptjax.kernels.sparse import Pattern
from ptjax.models.rotary import RopeScaling

# Fields that say how to compute, not what.
_COMPUTING = {
  "matmul_dtype",
  "activation_dtype",
  "remat",
  "merge_rows",
  "ff_parts",
  "ff_chunk",
  "out_first",
  "attention",
  "capacity_factor",
  "context_attention",
  "context_layout",
  "pattern",
  "context_transfer",
}


REMATS = ("none", "dots", "attention", "full", "offload")
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclasses.dataclass(frozen=True)
class MoeConfig:
  """A mixture of experts in place of the feed-forward layer; see `models.experts`.

  Attributes:
    num_experts: routed experts.
    top_k: experts of one token.
    d_ff: width of each.
    scoring: `softmax` of the router's logits, or `sigmoid` (DeepSeek-V3, section 2.1.2), whose
      choice adds a correction to the scores that the weights do not have.
    normalize: the chosen experts' weights are divided by their sum.
    weight_scale: multiplies the weights.
    num_groups, top_groups: experts are chosen from so many best groups of experts.
    shared_d_ff: width of the experts that every token uses; 0 for none.
    first_dense: layers at the bottom that have an ordinary feed-forward layer.
    biases: router and experts have biases (GPT-OSS).
    swiglu_limit: (up + 1) gate sigmoid(alpha gate) with both clamped here (GPT-OSS); None for
      the model's activation.
    swiglu_alpha: of that.
  """

  num_experts: int
  top_k: int
  d_ff: int
  scoring: str = "softmax"
  normalize: bool = True
  weight_scale: float = 1.0
  num_groups: int = 1
  top_groups: int = 1
  shared_d_ff: int = 0
  first_dense: int = 0
  biases: bool = False
  swiglu_limit: float | None = None
  swiglu_alpha: float = 1.702

  def __post_init__(self):
    if not 0 < self.top_k <= self.num_experts:
      raise ValueError(f"top_k {self.top_k} must be 1 to num_experts {self.num_experts}")
    if self.scoring not in ("softmax", "sigmoid"):
      raise ValueError(f"scoring is {self.scoring!r}; use 'softmax' or 'sigmoid'")
    if self.num_experts % self.num_groups or not 0 < self.top_groups <= self.num_groups:
      raise ValueError(
        f"{self.num_experts} experts, {self.num_groups} groups, {self.top_groups} of them chosen: "
        "groups must divide the experts and be at least as many as are chosen"
      )
    if self.top_k > self.top_groups * (self.num_experts // self.num_groups):
      raise ValueError(
        f"top_k {self.top_k} experts do not fit in {self.top_groups} groups of "
        f"{self.num_experts // self.num_groups}"
      )


@dataclasses.dataclass(frozen=True)
class LatentConfig:
  """Multi-head latent attention (DeepSeek-V2, section 2.1); see `models.latent`.

  Attributes:
    query_rank: width of the queries' latent; 0 projects them directly.
    kv_rank: width of the latent of keys and values.
    nope_dim: part of a head that is not rotated.
    rope_dim: part that is; its key is one for all heads.
    value_dim: width of a value head.
    interleaved: the rotated pairs are neighbours (2i, 2i+1), not halves (i, i + H/2).
  """

  query_rank: int
  kv_rank: int
  nope_dim: int
  rope_dim: int
  value_dim: int
  interleaved: bool = True


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """A decoder: RMSNorm, rotary attention, gated feed-forward; the Llama family by default.

  Attributes:
    vocab_size: rows of the embedding table.
    d_model: width of the residual stream.
    num_layers: blocks.
    num_heads: query heads.
    num_kv_heads: key/value heads; query head n reads key/value head n // (N / K).
    head_dim: width of one head.
    d_ff: width of the gated feed-forward layer.
    rope_theta: base of the rotary frequencies.
    norm_eps: added to the mean square in RMSNorm.
    tie_embeddings: the output projection is the embedding table.
    max_position: positions the weights were trained for.
    family: whose tensor names its checkpoints use, a key of `models.families.FAMILIES`.
    rope_scaling: how the rotary frequencies are changed for long contexts.
    local_rope_theta: base of the layers with a window, unscaled; None: as in the others.
    window: keys that a query sees at most in the layers with a window; None for no such layer.
    sliding: which layers have the window; empty for all.
    nope: which layers do not rotate at all; empty for none.
    qkv_bias, out_bias: attention projections with a bias.
    qk_norm: queries and keys are normalised before they are rotated.
    query_scale: scores are multiplied by it; None for 1 / sqrt(head_dim).
    score_cap, logit_cap: soft caps of the attention scores and of the logits.
    sinks: a learned score per head that takes weight from the keys.
    activation: of the feed-forward layer's gate, one of `ACTIVATIONS`.
    post_norms: attention and feed-forward outputs are normalised before they are added.
    norm_offset: norms scale by 1 + w.
    embed_scale: multiplies the embeddings.
    moe: a mixture of experts in place of the feed-forward layer.
    latent: multi-head latent attention; `head_dim` is then nope_dim + rope_dim.
    matmul_dtype: dtype in which matrix products read their operands; they always
      accumulate in float32.
    activation_dtype: dtype of the residual stream between the products.
    remat: what the backward pass computes again: `none`, `dots` (all but the products with
      weights: the least memory traffic), `attention` (all but its output: the least memory
      that does not compute it twice), `full` (the whole block), or `offload` (as `attention`,
      but what it keeps waits in the host's memory).
    merge_rows: run the blocks on [B x T, D] instead of [B, T, D]. XLA's CPU backend then
      needs no transposed copies for weight gradients (a quarter of the time); a mesh that
      splits the length cannot.
    ff_parts: pieces of d_ff that are summed apart in the feed-forward layer's output product.
      One long chain of float32 sums puts SmolLM2's logits off by 1e-4 at its attention sink,
      two halves by 3e-5. With 1, a mesh that splits d_ff moves no piece between devices.
    ff_chunk: tokens of a device whose inner states of the feed-forward layer exist at a time;
      None for all. Its weights are gathered, and their gradient scattered, once a chunk.
    out_first: the weights of the blocks are stored [out, in] and multiply from the left. With few
      rows XLA's CPU backend is a sixth faster so; the engine keeps its copy in this form.
    capacity_factor: places of each expert, as a multiple of an even load; choices beyond them are
      dropped. None drops nothing.
    attention: implementation, auto or one of `kernels.attention.IMPLEMENTATIONS`.
    context_attention: how attention crosses the cuts of a row, auto or one of
      `kernels.context.WAYS`.
    context_layout: which tokens of a row each of its shards holds, see `kernels.layout`.
    context_transfer: how a ring's keys travel, see `kernels.ring.Ring`.
    pattern: sparse attention in every layer, in training and in decoding; None for dense.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-5
  tie_embeddings: bool = True
  max_position: int = 8192
  family: str = "llama"
  rope_scaling: RopeScaling | None = None
  local_rope_theta: float | None = None
  window: int | None = None
  sliding: tuple[bool, ...] = ()
  nope: tuple[bool, ...] = ()
  qkv_bias: bool = False
  out_bias: bool = False
  qk_norm: bool = False
  query_scale: float | None = None
  score_cap: float | None = None
  logit_cap: float | None = None
  sinks: bool = False
  activation: str = "silu"
  post_norms: bool = False
  norm_offset: bool = False
  embed_scale: float | None = None
  moe: MoeConfig | None = None
  latent: LatentConfig | None = None
  matmul_dtype: str = "float32"
  activation_dtype: str = "float32"
  remat: str = "dots"
  merge_rows: bool = False
  ff_parts: int = 2
  ff_chunk: int | None = None
  out_first: bool = False
  attention: str = AUTO
  context_attention: Literal["auto", "ring", "all_gather", "ulysses"] = AUTO
  context_layout: LayoutName = "zigzag"
  capacity_factor: float | None = None
  pattern: Pattern | None = None
  context_transfer: Transfer = "xla"

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
      )
    if self.ff_parts < 1 or self.d_ff % self.ff_parts:
      raise ValueError(f"ff_parts {self.ff_parts} does not divide d_ff {self.d_ff}; use 1")
    if self.ff_chunk is not None and self.ff_chunk < 1:
      raise ValueError(f"ff_chunk {self.ff_chunk} must be at least 1, or None for all tokens")
    if self.head_dim % 2:
      raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding rotates pairs")
    for name in ("matmul_dtype", "activation_dtype"):
      if getattr(self, name) not in ("float32", "bfloat16"):
        raise ValueError(f"{name} is {getattr(self, name)!r}; use 'float32' or 'bfloat16'")
    if self.capacity_factor is not None and not self.capacity_factor > 0:
      raise ValueError(f"capacity_factor {self.capacity_factor} must be > 0, or None for dropless")
    for name, known in (
      ("attention", (AUTO, *IMPLEMENTATIONS)),
      ("context_attention", (AUTO, *WAYS)),
      ("context_layout", LAYOUTS),
      ("context_transfer", TRANSFERS),
      ("remat", REMATS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(known)}")
    if self.activation not in ACTIVATIONS:
      raise ValueError(f"activation is {self.activation!r}; use one of {', '.join(ACTIVATIONS)}")
    if self.window is not None and self.window < 1:
      raise ValueError(f"window {self.window} must be at least 1, or None for no window")
    for name in ("sliding", "nope"):
      if (flags := getattr(self, name)) and len(flags) != self.num_layers:
        raise ValueError(f"{name} names {len(flags)} layers, the model has {self.num_layers}")
    if self.moe is not None and not self.moe.first_dense < self.num_layers:
      raise ValueError(f"all {self.num_layers} layers are dense (first_dense); leave moe out")

  def identity(self) -> dict[str, object]:
    """The fields that decide which weights fit, as JSON types; how to compute is left out."""
    fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in _COMPUTING}
    return json.loads(json.dumps(fields))  # a checkpoint gives lists back for tuples

  def first(self, num_layers: int) -> "DecoderConfig":
    """The decoder of the first layers only.

    Raises:
      ValueError: none of them has experts, where the model has some.
    """
    if self.moe is not None and num_layers <= self.moe.first_dense:
      raise ValueError(
        f"the first {num_layers} layers have no experts; use more than {self.moe.first_dense}"
      )
    flags = {name: getattr(self, name)[:num_layers] for name in ("sliding", "nope")}
    return dataclasses.replace(self, num_layers=num_layers, **flags)

  @property
  def experts(self) -> MoeConfig:
    """`moe` of a model that has one."""
    assert self.moe is not None
    return self.moe

  @property
  def latents(self) -> LatentConfig:
    """`latent` of a model that has one."""
    assert self.latent is not None
    return self.latent

  @property
  def stacks(self) -> dict[str, int]:
    """Layers of each stack of equally shaped blocks, in their order."""
    dense = 0 if self.moe is None else self.moe.first_dense
    rest = {"layers": self.num_layers - dense}
    return {"first_layers": dense} | rest if dense else rest

  @property
  def value_dim(self) -> int:
    """Width of a value head."""
    return self.head_dim if self.latent is None else self.latent.value_dim

  @property
  def rotary_dim(self) -> int:
    """Width of the rotated part of a head."""
    return self.head_dim if self.latent is None else self.latent.rope_dim

  @property
  def ropes(self) -> tuple[tuple[float, RopeScaling | None] | None, ...]:
    """The rotary embeddings of the model's layers, as (theta, scaling); None rotates nothing."""
    kinds = [(self.rope_theta, self.rope_scaling)]
    if self.local_rope_theta is not None:
      kinds.append((self.local_rope_theta, None))
    return (*kinds, None) if any(self.nope) else tuple(kinds)

  def layer_window(self, layer: int) -> int | None:
    """Keys that a query of this layer sees at most."""
    return self.window if not self.sliding or self.sliding[layer] else None

  def layer_rope(self, layer: int) -> int:
    """Index into `ropes`."""
    if self.nope and self.nope[layer]:
      return len(self.ropes) - 1
    return int(self.local_rope_theta is not None and self.layer_window(layer) is not None)

  @property
  def num_params(self) -> int:
    """Parameters of the decoder, tied embeddings counted once."""
    norms = (4 if self.post_norms else 2) * self.d_model
    dense = 3 * self.d_model * self.d_ff
    first = 0 if self.moe is None else self.moe.first_dense
    feed_forward = dense if self.moe is None else _moe_params(self.moe, self.d_model)
    blocks = self.num_layers * (_attention_params(self) + norms)
    blocks += first * dense + (self.num_layers - first) * feed_forward
    tables = 1 if self.tie_embeddings else 2
    return tables * self.vocab_size * self.d_model + blocks + self.d_model


def _attention_params(c: DecoderConfig) -> int:
  if c.latent is not None:
    m, heads = c.latent, c.num_heads
    query = (c.d_model + heads * c.head_dim + 1) * m.query_rank
    direct = c.d_model * heads * c.head_dim
    kv = c.d_model * (m.kv_rank + m.rope_dim) + m.kv_rank
    expand = m.kv_rank * heads * (m.nope_dim + m.value_dim)
    return (query if m.query_rank else direct) + kv + expand + heads * m.value_dim * c.d_model
  d, heads, kv = c.d_model, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  extra = c.qkv_bias * (heads + 2 * kv) + c.out_bias * d + c.qk_norm * 2 * c.head_dim
  return 2 * d * heads + 2 * d * kv + extra + c.sinks * c.num_heads


def _moe_params(m: MoeConfig, d_model: int) -> int:
  router = d_model * m.num_experts + m.num_experts * (m.biases + (m.scoring == "sigmoid"))
  experts = m.num_experts * (3 * d_model * m.d_ff + m.biases * (2 * m.d_ff + d_model))
  return router + experts + 3 * d_model * m.shared_d_ff
