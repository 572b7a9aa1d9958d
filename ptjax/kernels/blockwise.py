"""Attention by blocks of queries, for machines without a flash kernel.

A block of queries reads only the keys up to its own end, so a causal row costs half, and
only one block of the score matrix exists at a time. Every product is a plain batched
matrix product over [batch x kv head]: on CPU the general contractions of `reference` cost
three times as much, most of it in transposed copies of the backward pass.
"""

import jax
import jax.numpy as jnp

from ptjax.kernels.mask import masked_softmax
from ptjax.kernels.scores import PLAIN, Scores, cap

# G: query heads that share one key/value head. X: G x block, the rows of one product.


def blockwise(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  mask_BTS: jax.Array,
  scores: Scores = PLAIN,
  sinks_N: jax.Array | None = None,
  *,
  block: int = 64,
) -> jax.Array:
  """As `reference`, to rounding; `mask_BTS` must be causal."""
  rows, length, num_kv, head_dim = k_BTKH.shape
  group = q_BTNH.shape[2] // num_kv
  q_BKGTH = q_BTNH.reshape(rows, length, num_kv, group, head_dim).transpose(0, 2, 3, 1, 4)
  q_BKGTH = q_BKGTH * scores.scale_of(head_dim)
  sink = None if sinks_N is None else sinks_N.reshape(num_kv, group, 1, 1)
  k_BKSH, v_BKSH = (x.transpose(0, 2, 1, 3) for x in (k_BTKH, v_BTKH))

  def one(start: int) -> jax.Array:
    stop = min(start + block, length)
    q_BKXH = q_BKGTH[:, :, :, start:stop].reshape(rows, num_kv, -1, head_dim)
    scores_BKXS = jnp.einsum(
      "BKXH,BKSH->BKXS", q_BKXH, k_BKSH[:, :, :stop], preferred_element_type=jnp.float32
    )
    scores_BKGTS = scores_BKXS.reshape(rows, num_kv, group, stop - start, stop)
    mask = mask_BTS[:, None, None, start:stop, :stop]
    weights = masked_softmax(cap(scores_BKGTS, scores.cap), mask, sink)
    weights_BKXS = weights.reshape(scores_BKXS.shape).astype(v_BTKH.dtype)
    out_BKXH = jnp.einsum("BKXS,BKSH->BKXH", weights_BKXS, v_BKSH[:, :, :stop])
    return out_BKXH.reshape(rows, num_kv, group, stop - start, -1)

  out_BKGTH = jnp.concatenate([one(i) for i in range(0, length, block)], axis=3)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(*q_BTNH.shape[:3], -1).astype(q_BTNH.dtype)
