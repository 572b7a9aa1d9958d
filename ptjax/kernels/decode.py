"""Attention of one new token a slot over its key/value cache, which may be cut over devices."""

import jax
import jax.numpy as jnp

from ptjax.kernels.mask import masked_softmax
from ptjax.kernels.scores import PLAIN, Scores, cap
from ptjax.kernels.sparse import Pattern

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
  pattern: Pattern | None = None,
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
    pattern: of those, only which it admits; an entry's position is its place in the cache.

  Returns:
    out_RNH in the dtype of q.
  """
  places_S = jnp.arange(k_RKHS.shape[3])
  valid_RS = _valid(places_S, lengths_R, window, pattern)
  sink = None if sinks_N is None else sinks_N.reshape(k_RKHS.shape[1], -1, 1)
  scores_RKGS = _scores(q_RNH, k_RKHS, scores)
  weights_RKGS = masked_softmax(scores_RKGS, valid_RS[:, None, None], sink)
  out_RKGH = jnp.einsum("RKGS,RKSH->RKGH", weights_RKGS.astype(v_RKSH.dtype), v_RKSH)
  return out_RKGH.reshape(*q_RNH.shape[:2], -1)


def cut_decode_attention(
  q_RNH: jax.Array,
  k_RKHS: jax.Array,
  v_RKSH: jax.Array,
  lengths_R: jax.Array,
  *,
  axis: str,
  scores: Scores = PLAIN,
  window: int | None = None,
  sinks_N: jax.Array | None = None,
  pattern: Pattern | None = None,
) -> jax.Array:
  """`decode_attention` over a cache whose entries are cut along a mesh axis; under `shard_map`.

  Each device reads its own S entries; what travels is, of each head, the greatest score, the sum of
  the weights and the sum of the weighted values, all float32:

      out = sum_r e^(top_r - top) acc_r / sum_r e^(top_r - top) total_r

  Args:
    k_RKHS, v_RKSH: the entries [r S, (r + 1) S) of device r. Past a slot's length both may be
      anything, nan included.
    axis: of the mesh.

  Other arguments and the result, the same on every device of the axis: see `decode_attention`.
  """
  num_kv, size = k_RKHS.shape[1], k_RKHS.shape[3]
  places_S = jax.lax.axis_index(axis) * size + jnp.arange(size)
  valid_RS = _valid(places_S, lengths_R, window, pattern)
  scores_RKGS = jnp.where(valid_RS[:, None, None], _scores(q_RNH, k_RKHS, scores), -jnp.inf)
  top_RKG = jax.lax.pmax(scores_RKGS.max(-1), axis)
  sink_KG = None if sinks_N is None else sinks_N.astype(jnp.float32).reshape(num_kv, -1)
  if sink_KG is not None:
    top_RKG = jnp.maximum(top_RKG, sink_KG)
  top_RKG = jnp.where(jnp.isfinite(top_RKG), top_RKG, 0.0)
  weights_RKGS = jnp.exp(scores_RKGS - top_RKG[..., None])
  v_RKSH = jnp.where(valid_RS[:, None, :, None], v_RKSH, 0)
  acc_RKGH = jnp.einsum(
    "RKGS,RKSH->RKGH",
    weights_RKGS.astype(v_RKSH.dtype),
    v_RKSH,
    preferred_element_type=jnp.float32,
  )
  acc_RKGH, total_RKG = jax.lax.psum((acc_RKGH, weights_RKGS.sum(-1)), axis)
  if sink_KG is not None:
    total_RKG = total_RKG + jnp.exp(sink_KG - top_RKG)
  out_RKGH = acc_RKGH / jnp.where(total_RKG > 0, total_RKG, 1.0)[..., None]
  return out_RKGH.astype(q_RNH.dtype).reshape(*q_RNH.shape[:2], -1)


def _scores(q_RNH, k_RKHS, scores: Scores) -> jax.Array:
  num_kv, head_dim = k_RKHS.shape[1:3]
  q_RKGH = q_RNH.reshape(q_RNH.shape[0], num_kv, -1, head_dim) * scores.scale_of(head_dim)
  scores_RKGS = jnp.einsum("RKGH,RKHS->RKGS", q_RKGH, k_RKHS, preferred_element_type=jnp.float32)
  return cap(scores_RKGS, scores.cap)


def _valid(places_S, lengths_R, window: int | None, pattern: Pattern | None) -> jax.Array:
  """bool[R, S]: entries of the cache that the newest token of each slot reads."""
  valid_RS = places_S < lengths_R[:, None]
  if window is not None:
    valid_RS &= places_S >= lengths_R[:, None] - window
  if pattern is not None:
    valid_RS &= pattern.admits(lengths_R[:, None] - 1, places_S[None])
  return valid_RS
