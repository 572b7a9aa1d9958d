"""Attention of one new token a slot over its key/value cache."""

import jax
import jax.numpy as jnp

from ptjax.kernels.mask import masked_softmax
from ptjax.kernels.scores import PLAIN, Scores, cap

# G: query heads that share one key/value head.


def decode_attention(
  q_RNH: jax.Array,
  k_RKHS: jax.Array,
  v_RKSH: jax.Array,
  lengths_R: jax.Array,
  *,
  scores: Scores = PLAIN,
  window: int | None = None,
  sinks_N: jax.Array | None = None,
) -> jax.Array:
  """One query a slot against its cache; entries at or past `lengths_R` weigh 0.

  Args:
    q_RNH: queries of the newest tokens.
    k_RKHS: keys, transposed: the product with a query then reads them in order. Past a slot's
      length they may be anything, nan included.
    v_RKSH: values; past a slot's length they must be finite.
    lengths_R: i32, entries of each slot that count.
    scores, sinks_N: as in `kernels.attention`.
    window: only so many of the last entries count.

  Returns:
    out_RNH in the dtype of q.
  """
  num_kv, head_dim, num_keys = k_RKHS.shape[1:]
  q_RKGH = q_RNH.reshape(q_RNH.shape[0], num_kv, -1, head_dim) * scores.scale_of(head_dim)
  valid_RS = jnp.arange(num_keys) < lengths_R[:, None]
  if window is not None:
    valid_RS &= jnp.arange(num_keys) >= lengths_R[:, None] - window
  sink = None if sinks_N is None else sinks_N.reshape(num_kv, -1, 1)
  scores_RKGS = jnp.einsum("RKGH,RKHS->RKGS", q_RKGH, k_RKHS, preferred_element_type=jnp.float32)
  weights_RKGS = masked_softmax(cap(scores_RKGS, scores.cap), valid_RS[:, None, None], sink)
  out_RKGH = jnp.einsum("RKGS,RKSH->RKGH", weights_RKGS.astype(v_RKSH.dtype), v_RKSH)
  return out_RKGH.reshape(*q_RNH.shape[:2], -1)
