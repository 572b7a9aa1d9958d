"""Estimates against the compiler's figures, which `make_estimates.py` has written down."""

import importlib.util
import json

import pytest
from make_estimates import CASES, PATH, experiment

from ptjax.models.presets import shape_of
from ptjax.planning.estimate import estimate
from ptjax.planning.setup import set_up
from ptjax.planning.topology import parse_topology

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)


def measured() -> list[dict]:
  return json.loads(PATH.read_text())


def test_every_case_was_compiled():
  assert [tuple(m["case"]) for m in measured()] == list(CASES)


@pytest.mark.parametrize("row", measured(), ids=lambda row: " ".join(map(str, row["case"])))
def test_the_estimate_is_within_a_tenth_of_the_compiler(row):
  case = tuple(row["case"])
  setup = set_up(experiment(case), shape_of(case[0]), parse_topology(case[1]).devices())
  (found,) = (live for live in estimate(setup) if live.name == "policy gradient")
  assert found.total == pytest.approx(row["live"], rel=0.1)
