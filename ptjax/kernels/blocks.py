"""Which blocks of queries and keys can see each other, and which pairs in them do.

The rule of `kernels.mask` by ids alone, without a [T, S] array: a block is known by the least
and the greatest of each id of its tokens, and a pair of blocks is computed only where those
admit a visible pair. The number of blocks computed, not their square, is what attention costs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ptjax.kernels.sparse import Pattern

# X: blocks of queries. Y: blocks of keys.

_FAR = 2**29  # beyond every id; differences of two still fit i32
NUM_BOUNDS = 8
UNBOUNDED = 2**31 - 1  # as a window: sees every key


class Ids(NamedTuple):
  """What the mask reads of each token, i32[B, T] each.

  Attributes:
    segment: document, 0 for padding.
    branch: branch within it, 0 for the shared prefix.
    position: position in the token's own sequence.
    index: place in the row, over all shards: causal order.
  """

  segment: jax.Array
  branch: jax.Array
  position: jax.Array
  index: jax.Array

  def pad(self, missing: int) -> "Ids":
    """With so many tokens of padding at the end."""
    return Ids(*(jnp.pad(x, ((0, 0), (0, missing))) for x in self)) if missing else self

  def block(self, row, start, size: int) -> "Ids":
    """Tokens [start, start + size) of one row, i32[size] each; both may be traced."""
    return Ids(*(jax.lax.dynamic_slice(x, (row, start), (1, size))[0] for x in self))


def pair_mask(q: Ids, k: Ids, window: jax.Array | int | None, pattern: Pattern | None) -> jax.Array:
  """bool[..., T, S], true where a query sees a key; ids are [..., T] and [..., S]."""
  q, k = Ids(*(x[..., :, None] for x in q)), Ids(*(x[..., None, :] for x in k))
  return sees(q, k, window, pattern)


def sees(q: Ids, k: Ids, window, pattern: Pattern | None) -> jax.Array:
  mask = (q.segment == k.segment) & (q.segment > 0)
  mask &= (k.branch == 0) | (k.branch == q.branch)
  mask &= k.index <= q.index
  if pattern is not None:
    mask &= pattern.admits(q.position, k.position)
  return mask if window is None else mask & (q.position - k.position < window)


def bounds(ids: Ids, size: int) -> jax.Array:
  """i32[B, X, 8]: least and greatest segment, branch, position and index of each block's tokens.

  A block of padding has its least above its greatest, so that it sees nothing. The length of the
  rows is a multiple of `size`.
  """
  rows = ids.segment.shape[0]
  blocks = Ids(*(x.reshape(rows, -1, size) for x in ids))
  real = blocks.segment > 0
  ends = []
  for x in blocks:
    ends += [jnp.where(real, x, _FAR).min(-1), jnp.where(real, x, -_FAR).max(-1)]
  return jnp.stack(ends, axis=-1)


def may_see(q, k, window, pattern: Pattern | None):
  """Whether a block of queries may hold one that sees a key of another block.

  Args:
    q, k: sequences of the 8 numbers of `bounds`, arrays that broadcast or scalars.
    window: keys that a query sees at most, may be traced; None for no window.
    pattern: of sparse attention; None for all keys.
  """
  mask = (q[0] <= k[1]) & (k[0] <= q[1])
  mask &= (k[2] <= 0) | ((q[2] <= k[3]) & (k[2] <= q[3]))
  mask &= k[6] <= q[7]
  if pattern is not None:
    mask &= pattern.may_admit(q[4], q[5], k[4], k[5])
  return mask if window is None else mask & (q[4] - k[5] < window)


def block_table(
  q_BX8: jax.Array, k_BY8: jax.Array, window, pattern: Pattern | None = None
) -> jax.Array:
  """bool[B, X, Y], the pairs of blocks to compute."""
  q = [q_BX8[..., :, None, i] for i in range(NUM_BOUNDS)]
  k = [k_BY8[..., None, :, i] for i in range(NUM_BOUNDS)]
  return may_see(q, k, window, pattern)
