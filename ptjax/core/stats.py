"""Statistics of evaluation: the Wilson interval, pass@k, pooled quantiles. On the host, float64."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

Z_95 = 1.959963984540054
"""97.5% quantile of the standard normal: the z of a two-sided 95% interval."""


def wilson_interval(successes: float, n: int, z: float = Z_95) -> tuple[float, float]:
  """Wilson score interval of a pass rate.

      (p + z²/2n ∓ z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n),   p = successes/n

  Unlike p ∓ z·sqrt(p(1-p)/n) it stays inside [0, 1], and does not shrink to a point when nothing
  or everything passes, which is common on the small held-out sets of early training.

  Args:
    successes: tasks that passed; where they earn parts of a point, the sum of these.
    n: tasks tried.
    z: normal quantile; the default gives 95% coverage.

  Returns:
    (lower, upper); lower is exactly 0 without a success, upper exactly 1 without a failure.

  Raises:
    ValueError: n is not positive, or successes is not in 0..n.

  Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
  JASA 22 (1927); L. D. Brown, T. T. Cai, A. DasGupta, "Interval estimation for a binomial
  proportion", Statistical Science 16 (2001), §3.1.1.
  """
  if n <= 0 or not 0 <= successes <= n:
    raise ValueError(f"successes={successes}, n={n}: needs n > 0 and 0 <= successes <= n")
  p = successes / n
  scale = 1 + z * z / n
  center = (p + z * z / (2 * n)) / scale
  half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
  # At the two ends the closed form is 0 and 1 up to rounding; state it exactly.
  lower = 0.0 if successes == 0 else center - half
  upper = 1.0 if successes == n else center + half
  return lower, upper


def difference_interval(
  before: tuple[float, int], after: tuple[float, int], z: float = Z_95
) -> tuple[float, float]:
  """Interval of the difference of two independent pass rates, `after` less `before`.

      d - sqrt((p2 - l2)^2 + (u1 - p1)^2),  d + sqrt((u2 - p2)^2 + (p1 - l1)^2),   d = p2 - p1

  with l and u the ends of each rate's Wilson interval. Where both are of the same tasks it is too
  wide, never too narrow, if the answers to a task are not negatively correlated.

  Args:
    before, after: (successes, n) each.
    z: normal quantile; the default gives 95% coverage.

  Raises:
    ValueError: as `wilson_interval`.

  Source: R. G. Newcombe, "Interval estimation for the difference between independent proportions",
  Statistics in Medicine 17 (1998), method 10.
  """
  (low1, high1), (low2, high2) = wilson_interval(*before, z), wilson_interval(*after, z)
  rate1, rate2 = before[0] / before[1], after[0] / after[1]
  gain = rate2 - rate1
  down = math.hypot(rate2 - low2, high1 - rate1)
  return gain - down, gain + math.hypot(high2 - rate2, rate1 - low1)


def pass_at_k(n: int, c: int, k: int) -> float:
  """Unbiased estimate of the chance that at least one of k samples passes, for one problem.

      1 - C(n-c, k) / C(n, k)

  The mean over problems estimates pass@k of the model. The binomials are exact integers, so that
  no n or k overflows; their quotient is rounded once.

  Args:
    n: samples drawn for the problem.
    c: samples that passed.
    k: size of the subset; 1 <= k <= n.

  Returns:
    A number in [0, 1].

  Raises:
    ValueError: unless 1 <= k <= n and 0 <= c <= n.

  Source: M. Chen et al., "Evaluating large language models trained on code", 2021, eq. 1.
  """
  if not 1 <= k <= n or not 0 <= c <= n:
    raise ValueError(f"n={n}, c={c}, k={k}: pass@k needs 1 <= k <= n and 0 <= c <= n")
  return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pooled_quantiles(shards: Iterable[Sequence[float]], q: Sequence[float]) -> list[float]:
  """Quantiles of all values together, never means of the shards' quantiles.

  Args:
    shards: values by shard or micro-batch; a shard may be empty.
    q: quantiles wanted, each in [0, 1].

  Returns:
    For every q the linear interpolation at position (n-1)·q of the n sorted values (type 7 of
    R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", 1996); nan when there
    is no value.

  Raises:
    ValueError: a value is nan, or a q lies outside [0, 1].
  """
  pools = [np.asarray(shard, np.float64).ravel() for shard in shards]
  values = np.concatenate([*pools, np.empty(0)])
  if np.isnan(values).any():
    raise ValueError(f"{np.isnan(values).sum()} of {values.size} values are nan; mask them first")
  if not all(0 <= level <= 1 for level in q):
    raise ValueError(f"q={list(q)}: quantiles must lie in [0, 1]")
  if values.size == 0:
    return [math.nan] * len(q)
  return np.quantile(values, q).tolist()
