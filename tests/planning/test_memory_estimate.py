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


MEASURED = {row["case"]: row["live"] for row in json.loads(PATH.read_text())}


def test_every_case_was_compiled():
  assert list(MEASURED) == [case.name for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_estimate_is_within_a_tenth_of_the_compiler(case):
  setup = set_up(experiment(case), shape_of(case.model), parse_topology(case.topology).devices())
  (found,) = (live for live in estimate(setup) if live.name == "policy gradient")
  assert found.total == pytest.approx(MEASURED[case.name], rel=0.1)
