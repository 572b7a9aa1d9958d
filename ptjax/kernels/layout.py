"""Which positions of a row each shard of the `context` axis holds.

A row of T tokens is stored so that cutting it into equal parts gives every device its share.
Worked example, 8 tokens over 2 shards, the index of each stored token:

    contiguous  0 1 2 3 | 4 5 6 7     causal work of the shards 10 : 26
    striped     0 2 4 6 | 1 3 5 7                               16 : 20
    zigzag      0 1 6 7 | 2 3 4 5                               18 : 18

Sources: zigzag, Llama 3 (2024, section 3.3.2); striped, Brandon et al. (2023).
"""

import dataclasses
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

LayoutName = Literal["zigzag", "contiguous", "striped"]
LAYOUTS: tuple[LayoutName, ...] = ("zigzag", "contiguous", "striped")

Index = TypeVar("Index", jax.Array, np.ndarray)


@dataclasses.dataclass(frozen=True)
class Layout:
  """The order in which the tokens of a row are stored over the shards.

  Attributes:
    name: one of `LAYOUTS`.
    shards: devices along the context axis.
  """

  name: LayoutName = "zigzag"
  shards: int = 1

  def __post_init__(self):
    if self.name not in LAYOUTS:
      raise ValueError(f"context layout {self.name!r} is unknown; use one of {', '.join(LAYOUTS)}")
    if self.shards < 1:
      raise ValueError(f"a layout over {self.shards} shards; it needs at least 1")

  @property
  def natural(self) -> bool:
    """Whether rows are stored in their own order."""
    return self.shards == 1 or self.name == "contiguous"

  def padded(self, length: int) -> int:
    """The least length, not under `length`, that the layout can store."""
    unit = self.shards * (2 if self.name == "zigzag" else 1)
    return -(-length // unit) * unit

  def index_of(self, stored: Index, length: int) -> Index:
    """Index in the row of the token at a stored place; `length` is a `padded` one."""
    if self.natural:
      return stored
    shard, place = stored // (length // self.shards), stored % (length // self.shards)
    if self.name == "striped":
      return place * self.shards + shard
    chunk = length // (2 * self.shards)
    late = place // chunk  # 0 in the shard's first chunk, 1 in its second
    return (shard + late * (2 * self.shards - 1 - 2 * shard)) * chunk + place % chunk

  def stored_at(self, index: Index, length: int) -> Index:
    """The inverse of `index_of`."""
    if self.natural:
      return index
    if self.name == "striped":
      return index % self.shards * (length // self.shards) + index // self.shards
    chunk = length // (2 * self.shards)
    late = index // chunk // self.shards
    shard = index // chunk + late * (2 * self.shards - 1 - 2 * (index // chunk))
    return (2 * shard + late) * chunk + index % chunk

  def store(self, x_BT: jax.Array) -> jax.Array:
    """A row array [B, T, ...] in stored order, padded with zeros."""
    length = self.padded(x_BT.shape[1])
    missing = length - x_BT.shape[1]
    if missing:
      x_BT = jnp.pad(x_BT, ((0, 0), (0, missing), *((0, 0) for _ in x_BT.shape[2:])))
    return x_BT if self.natural else x_BT[:, self.index_of(jnp.arange(length), length)]

  def restore(self, x_BT: jax.Array, length: int) -> jax.Array:
    """The inverse of `store` for a row of `length` tokens."""
    places = self.stored_at(jnp.arange(length), x_BT.shape[1])
    return x_BT[:, :length] if self.natural else x_BT[:, places]
