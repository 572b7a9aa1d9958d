"""Which keys a query sees in packed rows.

A packed row holds several documents, each a shared prefix followed by branches
(the completions of one prompt). A query sees a key when

    segment(key) == segment(query) > 0
    and branch(key) in {0, branch(query)}         0 is the shared prefix
    and index(key) <= index(query)                causal
    and position(query) - position(key) < window  where a window is set
    and the pattern admits the two positions      where one is set, see `kernels.sparse`

Worked example, one prompt "p q" with completions "a b" and "c", then padding:

    token     p q a b c .
    segment   1 1 1 1 1 0
    branch    0 0 1 1 2 0
    position  0 1 2 3 2 0
    c sees    p q     c
"""

import dataclasses

import jax
import jax.numpy as jnp

from ptjax.kernels.sparse import Pattern


@dataclasses.dataclass(frozen=True)
class MaskSpec:
  """What a query may see.

  Attributes:
    window: keys seen at most, the query's own included; None sees the whole prefix.
    pattern: of sparse attention; None for all keys.
  """

  window: int | None = None
  pattern: Pattern | None = None

  def __post_init__(self):
    if self.window is not None and self.window < 1:
      raise ValueError(f"window {self.window} must be at least 1, or None for no window")


def visible(
  spec: MaskSpec, segment_ids_BT: jax.Array, branch_ids_BT: jax.Array, positions_BT: jax.Array
) -> jax.Array:
  """Mask bool[B, T, S], true where query t sees key s (see the module's text)."""
  num = segment_ids_BT.shape[1]
  index_q, index_k = jnp.arange(num)[:, None], jnp.arange(num)[None, :]
  segment_q, segment_k = segment_ids_BT[:, :, None], segment_ids_BT[:, None, :]
  branch_q, branch_k = branch_ids_BT[:, :, None], branch_ids_BT[:, None, :]
  mask_BTS = (segment_q == segment_k) & (segment_q > 0)
  mask_BTS &= (branch_k == 0) | (branch_k == branch_q)
  mask_BTS &= index_k <= index_q
  if spec.window is not None:
    mask_BTS &= within(spec.window, positions_BT)
  if spec.pattern is not None:
    mask_BTS &= spec.pattern.admits(positions_BT[:, :, None], positions_BT[:, None, :])
  return mask_BTS


def within(window: jax.Array | int, positions_BT: jax.Array) -> jax.Array:
  """bool[B, T, S]: key s is one of the last `window` positions up to query t's own."""
  return positions_BT[:, :, None] - positions_BT[:, None, :] < window


def masked_softmax(scores: jax.Array, mask: jax.Array, sink: jax.Array | None = None) -> jax.Array:
  """Softmax over the last axis where `mask`; exactly 0 elsewhere and on empty rows.

  The mask comes before `exp`, so that a masked inf or nan reaches neither the value
  nor the gradient.

  Args:
    scores: f32[..., S].
    mask: bool, as scores.
    sink: f32[..., 1], the score of one more key, whose weight is left out of the result
      (Xiao et al., 2023; learned in GPT-OSS).
  """
  scores = jnp.where(mask, scores, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True)
  if sink is not None:
    top = jnp.maximum(top, sink)
  top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  if sink is not None:
    total = total + jnp.exp(sink - top)
  return weights / jnp.where(total > 0, total, 1.0)
