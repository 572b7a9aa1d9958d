"""How many samples importance weights leave: a metric that merges exactly."""

import dataclasses
from typing import Self

import jax

from ptjax.core.masked import fill
from ptjax.core.metrics import Array, Mean


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EffectiveSize:
  """Effective sample size of weights, (sum w)^2 / sum w^2, as a share of their number.

  1 where all are alike, 1/n where one of n is all of them. Source: Kong 1992.
  """

  weights: Mean
  squares: Mean

  @classmethod
  def of(cls, weights: Array, mask: Array) -> Self:
    """Reduces weights >= 0 of any shape; where the mask is 0 they may be anything."""
    weights = fill(weights, mask)
    return cls(Mean.of(weights, mask), Mean.of(weights * weights, mask))

  def merge(self, other: Self) -> Self:
    return type(self)(self.weights.merge(other.weights), self.squares.merge(other.squares))

  def compute(self) -> Array:
    """In [0, 1], 0 where every weight is 0; nan when nothing was counted."""
    mean, square = self.weights.compute(), self.squares.compute()
    return mean * mean / (square + (square == 0))
