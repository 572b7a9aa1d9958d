"""The shape of a decoder."""

import dataclasses

from ptjax.kernels.attention import IMPLEMENTATIONS

# Fields that say how to compute, not what.
_COMPUTING = {
  "matmul_dtype",
  "activation_dtype",
  "remat",
  "merge_rows",
  "ff_parts",
  "out_first",
  "attention",
}


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """A decoder of the Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU.

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
    matmul_dtype: dtype in which matrix products read their operands; they always
      accumulate in float32.
    activation_dtype: dtype of the residual stream between the products.
    remat: what the backward pass computes again: `none`, `dots` (all but the products with
      weights: the least memory traffic), or `full` (the whole block).
    merge_rows: run the blocks on [B x T, D] instead of [B, T, D]. XLA's CPU backend then
      needs no transposed copies for weight gradients (a quarter of the time); a mesh that
      splits the length cannot.
    ff_parts: pieces of d_ff that are summed apart in the feed-forward layer's output product.
      One long chain of float32 sums puts SmolLM2's logits off by 1e-4 at its attention sink,
      two halves by 3e-5. With 1, a mesh that splits d_ff moves no piece between devices.
    out_first: the weights of the blocks are stored [out, in] and multiply from the left. With few
      rows XLA's CPU backend is a sixth faster so; the engine keeps its copy in this form.
    attention: implementation, a key of `kernels.attention.IMPLEMENTATIONS`.
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
  matmul_dtype: str = "float32"
  activation_dtype: str = "float32"
  remat: str = "dots"
  merge_rows: bool = False
  ff_parts: int = 2
  out_first: bool = False
  attention: str = "blockwise"

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
      )
    if self.ff_parts < 1 or self.d_ff % self.ff_parts:
      raise ValueError(f"ff_parts {self.ff_parts} does not divide d_ff {self.d_ff}; use 1")
    if self.head_dim % 2:
      raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding rotates pairs")
    for name in ("matmul_dtype", "activation_dtype"):
      if getattr(self, name) not in ("float32", "bfloat16"):
        raise ValueError(f"{name} is {getattr(self, name)!r}; use 'float32' or 'bfloat16'")

    if self.attention not in IMPLEMENTATIONS:
      raise ValueError(
        f"attention is {self.attention!r}; use one of {', '.join(sorted(IMPLEMENTATIONS))}"
      )
    if self.remat not in ("none", "dots", "full"):
      raise ValueError(f"remat is {self.remat!r}; use 'none', 'dots' or 'full'")

  def identity(self) -> dict[str, object]:
    """The fields that decide which weights fit; how they are computed with is left out."""
    return {k: v for k, v in dataclasses.asdict(self).items() if k not in _COMPUTING}

  @property
  def num_params(self) -> int:
    """Parameters of the decoder, tied embeddings counted once."""
    d, heads, kv = self.d_model, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
    block = 2 * d * heads + 2 * d * kv + 3 * d * self.d_ff + 2 * d
    tables = 1 if self.tie_embeddings else 2
    return tables * self.vocab_size * d + self.num_layers * block + d
