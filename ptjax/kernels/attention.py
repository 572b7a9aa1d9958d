"""Attention over packed rows: the one entry, and the choice of implementation."""

import jax
import jax.numpy as jnp

from ptjax.kernels.blockwise import blockwise
from ptjax.kernels.mask import MaskSpec, visible, within
from ptjax.kernels.reference import reference
from ptjax.kernels.scores import PLAIN, Scores

IMPLEMENTATIONS = {"reference": reference, "blockwise": blockwise}


def attention(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  mask_spec: MaskSpec,
  segment_ids_BT: jax.Array,
  branch_ids_BT: jax.Array,
  positions_BT: jax.Array,
  implementation: str = "blockwise",
  scores: Scores = PLAIN,
  window: jax.Array | int | None = None,
  sinks_N: jax.Array | None = None,
) -> jax.Array:
  """Scaled dot-product attention with grouped key/value heads over packed rows.

    out = softmax(q k^T / sqrt(H)) v      over the keys that the query sees

  Args:
    q_BTNH: queries; query head n reads key/value head n // (N / K).
    k_BTKH: keys, after the rotary embedding.
    v_BTKH: values; their heads may have another width.
    mask_spec: window; see `kernels.mask` for the whole rule.
    segment_ids_BT: i32, document of each token, 0 for padding.
    branch_ids_BT: i32, branch within the document, 0 for the shared prefix.
    positions_BT: i32, position of the token in its own sequence.
    implementation: reference is the oracle; all others equal it to rounding.
    scores: their scale and soft cap.
    window: as the window of `mask_spec`, but one that may be traced: layers of one stack
      differ in it.
    sinks_N: f32, for each head the score of one more key, whose value is 0.

  Returns:
    out_BTNH in the dtype of q, its heads as wide as those of v; zeros at padding.
    Scores and softmax are float32.
  """
  # A weight of 0 does not stop a nan: padding must not enter the products at all.
  real = (segment_ids_BT > 0)[:, :, None, None]
  q_BTNH, k_BTKH, v_BTKH = (jnp.where(real, x, 0) for x in (q_BTNH, k_BTKH, v_BTKH))
  mask_BTS = visible(mask_spec, segment_ids_BT, branch_ids_BT, positions_BT)
  if window is not None:
    mask_BTS &= within(window, positions_BT)
  return IMPLEMENTATIONS[implementation](q_BTNH, k_BTKH, v_BTKH, mask_BTS, scores, sinks_N)
