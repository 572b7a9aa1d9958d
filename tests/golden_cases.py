"""The golden cases: a test marked `@pytest.mark.golden("gae")` runs once per case and dtype.

The test receives `case` and calls `case.check(ops)`, `ops` mapping the case's op to a function of
the case's inputs that returns its outputs by name. What is float32 by its own contract asks for
that dtype alone: `golden("sampling", dtypes=(np.float32,))`.
"""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
ANNOTATIONS = {"exact", "exact_zero_members", "invariant"}
INTEGERS = {"group_ids", "tokens", "token", "kept"}


def _numbers(x):
  """Nested lists with the strings "nan", "inf", "-inf" read as floats."""
  if isinstance(x, list):
    return [_numbers(v) for v in x]
  return float(x) if x in ("nan", "inf", "-inf") else x


def _has_none(x) -> bool:
  return any(_has_none(v) for v in x) if isinstance(x, list) else x is None


def _input(name, value, dtype):
  """Masks become bool, ids i32, floats the dtype of the run; lists with null stay lists."""
  value = _numbers(value)
  if not isinstance(value, list) or name in ("support", "micro_batches") or _has_none(value):
    return value
  if name in INTEGERS:
    return np.asarray(value, np.int32)
  return np.asarray(value, bool if name.endswith("mask") else dtype)


@dataclasses.dataclass(frozen=True)
class Case:
  """One golden case, to be computed in one dtype."""

  op: str
  inputs: dict
  expected: dict
  dtype: type
  rtol: float
  atol: float

  def check(self, ops) -> None:
    """Runs the op under the dtype of the case and compares every expected output."""
    inputs = {name: _input(name, value, self.dtype) for name, value in self.inputs.items()}
    with jax.enable_x64(self.dtype is np.float64):
      if "error" in self.expected:
        with pytest.raises(ValueError):
          ops[self.op](**inputs)
        return
      got = ops[self.op](**inputs)
    outputs = self.expected.keys() - ANNOTATIONS
    assert outputs, "a case without expected outputs tests nothing"
    for name in outputs:
      self._compare(name, got[name])
    zeros = self.expected.get("exact_zero_members", [])
    np.testing.assert_array_equal(np.asarray(got["advantages"])[zeros] if zeros else [], 0)

  def _compare(self, name, got) -> None:
    expected = _numbers(self.expected[name])
    if _has_none(expected):  # null: the value is not defined, the others are compared
      pairs = [(g, e) for g, e in zip(got, expected, strict=True) if e is not None]
    else:
      pairs = [(got, expected)]
    exact = name in self.expected.get("exact", [])
    for got_raw, expected_part in pairs:
      got_part = np.asarray(got_raw)
      assert got_part.shape == np.shape(expected_part), name
      np.testing.assert_allclose(
        got_part,
        expected_part,
        rtol=0 if exact else self.rtol,
        atol=0 if exact else self.atol,
        err_msg=name,
      )


def load(family: str, dtypes=(np.float64, np.float32)):
  """Yields the cases of a family as pytest parameters, once per dtype."""
  data = json.loads((GOLDEN / f"{family}.json").read_text())
  for case in data["cases"]:
    for dtype in dtypes:
      tolerance = case.get("tolerance", data["tolerance"])[dtype.__name__]
      yield pytest.param(
        Case(case["op"], case["inputs"], case["expected"], dtype, **tolerance),
        id=f"{case['id']}-{dtype.__name__}",
      )
