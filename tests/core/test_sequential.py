"""Anytime-valid tests: hand-computed evidence, false alarms by simulation, and power."""

import math

import numpy as np
import pytest

from ptjax.core.sequential import _RATIOS, anytime_interval, log_evidence_below


def test_evidence_by_hand():
  def ratios(s, n):
    return np.array([r**s * ((1 - r * 0.5) / 0.5) ** (n - s) for r in _RATIOS])

  first, second = ratios(1, 4), ratios(0, 3)
  assert math.exp(log_evidence_below([(1, 4)], 0.5)) == pytest.approx(first.mean() / 2 + 1 / 2)
  expected = ((first / 2 + 1 / 6) * second).mean() + 1 / 3
  assert math.exp(log_evidence_below([(1, 4), (0, 3)], 0.5)) == pytest.approx(expected)
  assert log_evidence_below([], 0.5) == pytest.approx(0.0)


@pytest.mark.parametrize(("rate", "floor", "n"), [(0.5, 0.5, 20), (0.1, 0.1, 50), (0.9, 0.9, 5)])
def test_one_evaluation_has_mean_one_at_the_floor_and_less_above(rate, floor, n):
  def mean(p):
    evidence = [math.exp(log_evidence_below([(s, n)], floor)) for s in range(n + 1)]
    chances = [math.comb(n, s) * p**s * (1 - p) ** (n - s) for s in range(n + 1)]
    return np.dot(evidence, chances)

  assert mean(rate) == pytest.approx(1.0)
  assert mean((1 + rate) / 2) < 1


def running_evidence(passed_RT, total, floor):
  """`log_evidence_below` of R runs at each of T evaluations, [R, T]."""
  running, out = np.zeros((len(passed_RT), len(_RATIOS))), []
  for j, passed in enumerate(passed_RT.T[..., None], start=1):
    ratio = _RATIOS**passed * ((1 - _RATIOS * floor) / (1 - floor)) ** (total - passed)
    running = (running + 1 / (j * (j + 1))) * ratio
    out.append(running.mean(1) + 1 / (j + 1))
  return np.log(np.stack(out, 1))


def test_false_alarms_of_ten_thousand_runs_at_the_floor():
  rng, alpha = np.random.default_rng(0), 0.05
  passed_RT = rng.binomial(20, 0.4, size=(10_000, 50))
  evidence_RT = running_evidence(passed_RT, 20, 0.4)
  history = [(int(s), 20) for s in passed_RT[0]]
  assert evidence_RT[0, -1] == pytest.approx(log_evidence_below(history, 0.4))
  alarms = (evidence_RT >= math.log(1 / alpha)).any(1).mean()
  assert 0 < alarms <= alpha


def test_a_late_fall_is_seen():
  rng = np.random.default_rng(1)
  good, bad = rng.binomial(20, 0.6, (500, 20)), rng.binomial(20, 0.1, (500, 5))
  evidence_RT = running_evidence(np.concatenate([good, bad], 1), 20, 0.4)
  assert (evidence_RT[:, -1] >= math.log(1 / 0.05)).mean() > 0.95


def test_the_interval_covers_at_all_times():
  rng, misses = np.random.default_rng(2), 0
  for _ in range(200):
    history = [(int(s), 30) for s in rng.binomial(30, 0.3, 8)]
    spans = [anytime_interval(history[: t + 1], 0.2) for t in range(0, 8, 3)]
    misses += not all(low <= 0.3 <= high for low, high in spans)
  assert misses <= 40
  low, high = anytime_interval([(300, 1000)] * 3)
  assert 0.24 < low < 0.3 < high < 0.36


def test_moved_rates_cross_the_bounds():
  low, high = anytime_interval([(90, 100), (10, 100)])
  assert low > high
  assert anytime_interval([]) == (0.0, 1.0)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: log_evidence_below([(1, 2)], 1.0), r"floor 1.0 must be in \(0, 1\)"),
    (lambda: log_evidence_below([(3, 2)], 0.5), "3 passed of 2"),
    (lambda: anytime_interval([], 0.0), r"alpha 0.0 must be in \(0, 1\)"),
  ],
)
def test_errors(call, message):
  with pytest.raises(ValueError, match=message):
    call()
