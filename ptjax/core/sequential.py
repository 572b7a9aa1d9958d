"""Tests of a pass rate that stay valid however often they are looked at. On the host, float64.

An e-process has mean at most 1 at every stopping time while its null hypothesis holds, so it ever
reaches 1/alpha with probability alpha at most (Ville, 1939).
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Counts = Sequence[tuple[int, int]]
"""(passed, total) of each evaluation, in order."""

_RATIOS = np.array([0.1, 0.3, 0.5, 0.7, 0.85, 0.95])
_BETS = np.array([0.1, 0.25, 0.5, 0.75, 0.95])
_HALVINGS = 60


def log_evidence_below(history: Counts, floor: float) -> float:
  """Log of an e-process against "the rate was `floor` or more at every evaluation".

      E_t = sum_j w_j mean_r prod_{i=j..t} L_i(r) + unspent_t
      w_j = 1 / (j (j + 1)),   unspent_t = 1 / (t + 1)
      L_i(r) = r^s ((1 - r floor) / (1 - floor))^(n-s),   s passes of n

  L_i is the likelihood ratio of the rate r * floor to `floor`. Its mean is at most 1 for every
  rate >= floor, that of tasks of unequal rates included, whose mean it is then (the product
  of what is linear in each is at most the power of the mean). The rate may move between
  evaluations: what starts at evaluation j sees a fall that happens there at the price of w_j.

  Args:
    history: evaluations of answers that are independent of each other given the policy.
    floor: in (0, 1).

  Returns:
    log E_t; the null is refuted at level alpha where it is at least log(1 / alpha).

  Raises:
    ValueError: a floor out of (0, 1), or counts that are none.

  Source: V. Vovk, R. Wang, "E-values: calibration, combination and applications", Ann. Statist. 49
  (2021), §4; J. Shin, A. Ramdas, A. Rinaldo, "E-detectors", 2022 (arXiv:2203.03532), §2.
  """
  if not 0 < floor < 1:
    raise ValueError(f"floor {floor} must be in (0, 1)")
  running = np.full(len(_RATIOS), -np.inf)  # of those that have started, by ratio
  for j, (passed, total) in enumerate(history, start=1):
    started = -math.log(j * (j + 1) * len(_RATIOS))
    running = np.logaddexp(running, started) + _log_ratios(passed, total, floor)
  unspent = -math.log(len(history) + 1)
  return float(np.logaddexp(np.logaddexp.reduce(running), unspent))


def anytime_interval(history: Counts, alpha: float = 0.05) -> tuple[float, float]:
  """Bounds of a constant pass rate that hold at all evaluations at once with probability 1 - alpha.

  Where the rate moves, the upper bound is of its least value so far and the lower one of its
  greatest: `low > high` is then evidence that it moved.

  Raises ValueError unless 0 < alpha < 1, or for counts that are none.
  """
  if not 0 < alpha < 1:
    raise ValueError(f"alpha {alpha} must be in (0, 1)")
  limit = math.log(2 / alpha)
  failures = [(total - passed, total) for passed, total in history]
  return 1 - _bound(failures, limit), _bound(history, limit)


def _bound(history: Counts, limit: float) -> float:
  """The least floor that is refuted, for the evidence rises with it; 1 where none is."""
  low, high = 0.0, 1.0
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    if middle in (low, high):
      break
    refuted = log_evidence_below(history, middle) >= limit
    low, high = (low, middle) if refuted else (middle, high)
  return high


def _log_ratios(passed: int, total: int, floor: float) -> np.ndarray:
  if not 0 <= passed <= total:
    raise ValueError(f"{passed} passed of {total}: needs 0 <= passed <= total")
  failed = total - passed
  return passed * np.log(_RATIOS) + failed * (np.log1p(-_RATIOS * floor) - math.log1p(-floor))


@dataclasses.dataclass(frozen=True)
class Above:
  """Evidence against "the mean of values in [-1, 1] was never above a limit", as it comes.

  Attributes:
    batches: of values, taken in so far.
    running: log of the capital of each bet; empty before the first batch.
  """

  batches: int = 0
  running: tuple[float, ...] = ()

  @property
  def log_evidence(self) -> float:
    """Log of the e-process; the null is refuted at level alpha where it is >= log(1 / alpha)."""
    unspent = -math.log(self.batches + 1)
    return float(np.logaddexp.reduce([*self.running, unspent]))


def add_values(above: Above, values: Sequence[float], limit: float) -> Above:
  """Takes a batch in.

      E_t = sum_j w_j mean_b prod_{i=j..t} prod_v (1 + b (v - limit) / (1 + limit)) + unspent_t

  with w_j and unspent_t of `log_evidence_below`. Each factor has mean at most 1 while the mean of
  v, given all before it, is at most the limit; what the values are like otherwise does not matter.

  Args:
    above: before it.
    values: in [-1, 1]; independent of each other given what was before the batch.
    limit: in [0, 1).

  Raises:
    ValueError: a value or limit out of its range.

  Source: I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting",
  JRSS B 86 (2024), §4.
  """
  v = np.asarray(values, np.float64)
  if not 0 <= limit < 1 or not np.all(np.abs(v) <= 1):
    raise ValueError(f"limit {limit} must be in [0, 1), values {v.tolist()} in [-1, 1]")
  j = above.batches + 1
  started = -math.log(j * (j + 1) * len(_BETS))
  gains = np.log1p(_BETS[:, None] * (v - limit) / (1 + limit)).sum(1)
  before = above.running or (-np.inf,) * len(_BETS)
  return Above(j, tuple((np.logaddexp(before, started) + gains).tolist()))
