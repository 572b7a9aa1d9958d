"""Wilson interval, pass@k and quantiles: golden vectors and values computed by hand."""

import json
import math
from pathlib import Path

import pytest

from ptjax.core import stats

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())


def cases(op):
  chosen = [case for case in GOLDEN["cases"] if case["op"] == op]
  return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def close(expected):
  return pytest.approx(expected, rel=1e-9, abs=1e-11, nan_ok=True)


def numbers(values):
  return [float(value) for value in values]


@cases("pass_at_k")
def test_pass_at_k_golden(case):
  inputs, expected = case["inputs"], case["expected"]
  problems = list(zip(inputs["n"], inputs["c"], strict=True))
  if "error" in expected:
    with pytest.raises(ValueError, match="pass@k needs"):
      [stats.pass_at_k(n, c, inputs["k"]) for n, c in problems]
    return
  got = [stats.pass_at_k(n, c, inputs["k"]) for n, c in problems]
  assert got == close(expected["per_problem"])
  assert sum(got) / len(got) == close(expected["mean"])
  if "per_problem" in expected.get("exact", []):
    assert got == expected["per_problem"]


def test_pass_at_k_by_enumeration():
  # n=4, c=2: of the 6 pairs, only the one of both failures has no pass: 5/6.
  assert stats.pass_at_k(4, 2, 2) == 5 / 6


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_pass_at_k_rejects(n, c, k):
  with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
    stats.pass_at_k(n, c, k)


@cases("wilson")
def test_wilson_golden(case):
  inputs, expected = case["inputs"], case["expected"]
  if "error" in expected:
    with pytest.raises(ValueError, match="needs n > 0"):
      stats.wilson_interval(**inputs)
    return
  lower, upper = stats.wilson_interval(**inputs)
  assert [lower, upper] == close([expected["lower"], expected["upper"]])
  for name in expected.get("exact", []):
    assert {"lower": lower, "upper": upper}[name] == expected[name]


def test_wilson_by_hand():
  # z=2, n=4, p=1/2: centre (1/2 + 1/2)/2 = 1/2, half 2·sqrt(1/16 + 1/16)/2 = sqrt(1/8).
  half = math.sqrt(1 / 8)
  assert stats.wilson_interval(2, 4, z=2.0) == close((0.5 - half, 0.5 + half))
  # z=2, n=4, no success: (1/2 + 2·sqrt(1/16))/2 = 1/2.
  assert stats.wilson_interval(0, 4, z=2.0) == (0.0, close(0.5))


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (0, 0), (0, -1)])
def test_wilson_rejects(successes, n):
  with pytest.raises(ValueError, match=f"successes={successes}, n={n}"):
    stats.wilson_interval(successes, n)


@cases("quantile")
def test_quantiles_golden(case):
  got = stats.pooled_quantiles(case["inputs"]["shards"], case["inputs"]["q"])
  assert got == close(numbers(case["expected"]["quantiles"]))


@pytest.mark.parametrize(("shards", "q"), [([[1.0, math.nan]], [0.5]), ([[1.0]], [1.5])])
def test_quantiles_reject(shards, q):
  with pytest.raises(ValueError, match=r"nan|must lie"):
    stats.pooled_quantiles(shards, q)
