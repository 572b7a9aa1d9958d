"""Attention over packed rows: the one entry, and the choice of implementation."""

import jax
import jax.numpy as jnp

from ptjax.kernels.blocks import Ids
from ptjax.kernels.blockwise import blockwise
from ptjax.kernels.context import Context, context_attention, flash_attention
from ptjax.kernels.flash import How
from ptjax.kernels.mask import MaskSpec, visible, within
from ptjax.kernels.reference import reference
from ptjax.kernels.scores import PLAIN, Scores

IMPLEMENTATIONS = ("reference", "blockwise", "flash")
AUTO = "auto"

# Rows up to here keep their [T, S] mask, 16 MiB: in few large pieces XLA's CPU backend is faster
# than in a loop over pairs of blocks, whose memory is linear in the length.
LONGEST_DENSE = 4096


def attention(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  mask_spec: MaskSpec,
  segment_ids_BT: jax.Array,
  branch_ids_BT: jax.Array,
  positions_BT: jax.Array,
  implementation: str = AUTO,
  scores: Scores = PLAIN,
  window: jax.Array | int | None = None,
  sinks_N: jax.Array | None = None,
  context: Context | None = None,
) -> jax.Array:
  """Scaled dot-product attention with grouped key/value heads over packed rows.

    out = softmax(q k^T / sqrt(H)) v      over the keys that the query sees

  Args:
    q_BTNH: queries; query head n reads key/value head n // (N / K).
    k_BTKH: keys, after the rotary embedding.
    v_BTKH: values; their heads may have another width.
    mask_spec: window and sparse pattern; see `kernels.mask` for the whole rule.
    segment_ids_BT: i32, document of each token, 0 for padding.
    branch_ids_BT: i32, branch within the document, 0 for the shared prefix.
    positions_BT: i32, position of the token in its own sequence.
    implementation: reference is the oracle, all others equal it to rounding; auto takes
      blockwise for rows up to 4,096 tokens, flash beyond.
    scores: their scale and soft cap.
    window: as the window of `mask_spec`, but one that may be traced: layers of one stack
      differ in it.
    sinks_N: f32, for each head the score of one more key, whose value is 0.
    context: the mesh over whose devices the rows are cut; they are in the stored order of its
      layout. None: each row is whole, in its own order.

  Returns:
    out_BTNH in the dtype of q, its heads as wide as those of v; zeros at padding.
    Scores and softmax are float32.

  Raises:
    ValueError: rows that are cut, and an implementation that reads whole ones.
  """
  # A weight of 0 does not stop a nan: padding must not enter the products at all.
  real = (segment_ids_BT > 0)[:, :, None, None]
  q_BTNH, k_BTKH, v_BTKH = (jnp.where(real, x, 0) for x in (q_BTNH, k_BTKH, v_BTKH))
  if context is not None:
    if implementation not in (AUTO, "flash"):
      raise ValueError(
        f"attention {implementation!r} reads whole rows, which are cut over "
        f"{context.layout.shards} devices; use 'auto' or 'flash'"
      )
    return context_attention(
      q_BTNH,
      k_BTKH,
      v_BTKH,
      context=context,
      segment_ids_BT=segment_ids_BT,
      branch_ids_BT=branch_ids_BT,
      positions_BT=positions_BT,
      scores=scores,
      window=_narrower(mask_spec.window, window),
      sinks_N=sinks_N,
      pattern=mask_spec.pattern,
    )
  length = q_BTNH.shape[1]
  if implementation == AUTO:
    implementation = "blockwise" if length <= LONGEST_DENSE else "flash"
  if implementation == "flash":
    places = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (q_BTNH.shape[0], length))
    segment, branch, position = map(jnp.asarray, (segment_ids_BT, branch_ids_BT, positions_BT))
    ids = Ids(segment, branch, position, places)
    how = How.of(scores, q_BTNH.shape[-1], pattern=mask_spec.pattern)
    narrow = _narrower(mask_spec.window, window)
    return flash_attention(how, q_BTNH, k_BTKH, v_BTKH, sinks_N, narrow, ids, ids)
  mask_BTS = visible(mask_spec, segment_ids_BT, branch_ids_BT, positions_BT)
  if window is not None:
    mask_BTS &= within(window, positions_BT)
  dense = {"reference": reference, "blockwise": blockwise}[implementation]
  return dense(q_BTNH, k_BTKH, v_BTKH, mask_BTS, scores, sinks_N)


def _narrower(fixed: int | None, window: jax.Array | int | None) -> jax.Array | int | None:
  """The less of two windows, either of which may be none."""
  if fixed is None or window is None:
    return fixed if window is None else window
  return jnp.minimum(fixed, window)
