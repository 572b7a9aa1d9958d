"""docs/numerics.md names what exists: tests, estimators, losses, corrections, aggregations."""

import re
from pathlib import Path

import pytest

from ptjax.algos.aggregate import AGGREGATIONS
from ptjax.train.policy_objective import CLIPS, CORRECTION_DEFAULTS
from ptjax.train.rl_config import ESTIMATORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "numerics.md").read_text()


def test_every_test_it_names_exists():
  named = set(re.findall(r"`(test_\w+)`", PAGE))
  assert len(named) > 30
  sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
  defined = set(re.findall(r"^def (test_\w+)", sources, re.M))
  assert sorted(named - defined) == []


@pytest.mark.parametrize("names", [ESTIMATORS, AGGREGATIONS, CLIPS, CORRECTION_DEFAULTS])
def test_it_describes_every_choice(names):
  assert [name for name in names if name != "none" and f"`{name}`" not in PAGE] == []
