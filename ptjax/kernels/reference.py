"""The oracle: attention as it is written in the papers, with the whole score matrix."""

import jax
import jax.numpy as jnp

from ptjax.kernels.mask import masked_softmax
from ptjax.kernels.scores import PLAIN, Scores, cap

# G: query heads that share one key/value head.


def reference(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  mask_BTS: jax.Array,
  scores: Scores = PLAIN,
  sinks_N: jax.Array | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(H)) v over the visible keys; arguments as `attention`."""
  num_kv, head_dim = k_BTKH.shape[2:]
  q_BTKGH = q_BTNH.reshape(*q_BTNH.shape[:2], num_kv, -1, head_dim)
  q_BTKGH = q_BTKGH * scores.scale_of(head_dim)
  scores_BKGTS = jnp.einsum(
    "BTKGH,BSKH->BKGTS", q_BTKGH, k_BTKH, preferred_element_type=jnp.float32
  )
  sink = None if sinks_N is None else sinks_N.reshape(num_kv, -1, 1, 1)
  weights_BKGTS = masked_softmax(cap(scores_BKGTS, scores.cap), mask_BTS[:, None, None], sink)
  out_BTKGH = jnp.einsum("BKGTS,BSKH->BTKGH", weights_BKGTS.astype(v_BTKH.dtype), v_BTKH)
  return out_BTKGH.reshape(*q_BTNH.shape[:3], -1).astype(q_BTNH.dtype)
