"""The compiler's word on what the formulas have found."""

import dataclasses
import importlib.util

import pytest
from plan_toys import SHAPE, TOPOLOGY, toy

from ptjax.planning.confirm import border, confirm
from ptjax.planning.search import search
from ptjax.planning.topology import parse_topology
from ptjax.report.plan_table import search_lines

compiler = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)


@pytest.mark.parametrize("largest", [0, 5, 29, 30, 31, 40, 58, 100])
@pytest.mark.parametrize("start", [1, 30, 40])
def test_the_border_is_found_from_either_side(start, largest):
  asked = []

  def fits(n):
    asked.append(n)
    return n <= largest

  found, refused = border(fits, start, 10)
  assert len(asked) == len(set(asked))
  assert found <= largest
  assert refused is not None
  assert refused > largest
  assert refused - found == 10 or found == 0
  assert (found - start) % 10 == 0 or found == 0


def test_nothing_to_start_from():
  assert border(lambda n: pytest.fail(f"asked for {n}"), 0, 10) == (0, None)


@compiler
def test_the_compiler_confirms_the_first_candidate():
  topology, grpo = parse_topology(TOPOLOGY), dataclasses.replace(toy().rl, advantages="grpo")
  found = search(toy(critic=None, rl=grpo), SHAPE, topology)[:3]
  said = []
  ((candidate, plan),) = confirm(found, SHAPE, topology, 1, said.append)
  assert candidate is found[0]
  assert plan.fits
  assert {program.name for program in plan.programs} == {program.name for program in said}
  assert plan.peak.total == pytest.approx(candidate.live.total, rel=0.3)  # a toy: little is held
  first, second, _ = search_lines(found, [plan], topology.chip.hbm)
  assert "compiled" in first
  assert "fits" in first
  assert "compiled" not in second
  assert list(confirm(found, SHAPE, topology, 0)) == []
