"""Whether probabilities mean what they say: reliability table and expected calibration error."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bin:
  """Predictions whose confidence lies in (low, high], the first bin closed below.

  Attributes:
    low, high: edges.
    count: predictions in it.
    confidence: their mean confidence; nan without any.
    accuracy: share of them that was right; nan without any.
  """

  low: float
  high: float
  count: int
  confidence: float
  accuracy: float


def reliability(
  confidences: Sequence[float] | np.ndarray,
  correct: Sequence[bool] | np.ndarray,
  *,
  bins: int = 10,
  low: float = 0.0,
) -> list[Bin]:
  """The reliability table over equal bins of [low, 1].

  Args:
    confidences: predicted probability of being right, each in [low, 1].
    correct: whether it was.
    bins: number of bins.
    low: least possible confidence; 1/2 for the likelier of two outcomes.

  Raises:
    ValueError: lengths differ, or a confidence outside [low, 1].
  """
  confidences = np.asarray(confidences, np.float64)
  right = np.asarray(correct, bool)
  if confidences.shape != right.shape:
    raise ValueError(f"{confidences.size} confidences, {right.size} outcomes; give one for each")
  if not np.all((confidences >= low) & (confidences <= 1)):
    raise ValueError(f"confidences must lie in [{low}, 1], got {confidences.min()} to "
                     f"{confidences.max()}")  # fmt: skip
  edges = np.linspace(low, 1, bins + 1)
  index = np.clip(np.searchsorted(edges, confidences, side="left") - 1, 0, bins - 1)
  table = []
  for i in range(bins):
    mine = index == i
    empty = not mine.any()
    mean, share = (np.nan, np.nan) if empty else (confidences[mine].mean(), right[mine].mean())
    table.append(Bin(edges[i], edges[i + 1], int(mine.sum()), float(mean), float(share)))
  return table


def expected_calibration_error(table: Sequence[Bin]) -> float:
  """sum over bins of count / n * |accuracy - confidence|; nan without predictions.

  Source: Naeini et al. 2015; Guo et al. 2017, eq. 3.
  """
  total = sum(b.count for b in table)
  if not total:
    return float("nan")
  return sum(b.count / total * abs(b.accuracy - b.confidence) for b in table if b.count)
