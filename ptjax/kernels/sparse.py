"""Sparse attention patterns: which of the keys that causality and packing admit a query reads.

A pattern speaks of positions within a document, so that it holds in packed rows and in rows that
are cut over devices, in whatever order they are stored. Strides and random draws are of blocks
of positions: what no query of a block reads is neither computed nor fetched.

Sources: Child et al., 2019 (strided); Beltagy et al., 2020, "Longformer" (window and global
tokens); Zaheer et al., 2020, "BigBird" (random blocks).
"""

import dataclasses

import jax
import numpy as np

# P, K: blocks of positions of a query and of a key.


@dataclasses.dataclass(frozen=True)
class Pattern:
  """A query at position p reads the key at position k where any of these holds.

      p - k < window
      k < global_tokens
      (P - K) mod stride = 0          P = p div block, K = k div block
      K is one of the `random_blocks` drawn for P, uniformly from 0 to P

  Worked example, window 2, 1 global token, no more: position 5 reads 0, 4, 5.

  Attributes:
    window: keys, the query's own included.
    global_tokens: the first tokens of a document, read by all later ones.
    stride: every so manieth block before the query's own; None for none. A power of two.
    random_blocks: blocks drawn for each block of queries.
    block: positions of a block. A power of two; draws are uniform up to 131,072 blocks.
    seed: of the draws.
  """

  window: int = 4096
  global_tokens: int = 0
  stride: int | None = None
  random_blocks: int = 0
  block: int = 512
  seed: int = 0

  def __post_init__(self):
    for name, least in (("window", 1), ("global_tokens", 0), ("random_blocks", 0)):
      if getattr(self, name) < least:
        raise ValueError(f"pattern {name} {getattr(self, name)} must be at least {least}")
    for name, value in (("stride", self.stride), ("block", self.block)):
      if value is not None and (value < 1 or value & (value - 1)):
        raise ValueError(f"pattern {name} {value} is no power of two")

  def admits(self, p: jax.Array, k: jax.Array) -> jax.Array:
    """bool, whether the query at p reads the key at k; positions i32 that broadcast."""
    mask = (p - k < self.window) | (k < self.global_tokens)
    p, k = self._block_of(p), self._block_of(k)
    if self.stride is not None:
      mask |= ((p - k) & (self.stride - 1)) == 0
    for n in range(self.random_blocks):
      mask |= k == self._draw(p, n)
    return mask

  def may_admit(self, p_least, p_most, k_least, k_most):
    """Whether some query of a range of positions may read some key of another; never wrongly no."""
    mask = (p_least - k_most < self.window) | (k_least < self.global_tokens)
    first, last, low, high = map(self._block_of, (p_least, p_most, k_least, k_most))
    if self.stride is not None:  # a multiple of it lies between the least and the greatest distance
      mask |= ((last - low) & -self.stride) >= first - high
    if self.random_blocks:
      mask |= last - first > 1  # documents meet in the block: any draw may be in it
    for n in range(self.random_blocks):
      for block in (first, last):
        drawn = self._draw(block, n)
        mask |= (low <= drawn) & (drawn <= high)
    return mask

  def _block_of(self, position):
    return position >> (self.block.bit_length() - 1)

  def _draw(self, block, n: int):
    """The n-th block drawn for a block: 15 bits of a hash, scaled to 0 .. block."""
    mixed = block * np.int32(0x343FD) + np.int32((self.seed * 0x9E37 + n * 0x2545F + 1) % 2**31)
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D)):
      mixed = (mixed ^ jax.lax.shift_right_logical(mixed, np.int32(shift))) * np.int32(factor)
    bits = jax.lax.shift_right_logical(mixed, np.int32(17))
    return jax.lax.shift_right_logical(bits * (block + 1), np.int32(15))
