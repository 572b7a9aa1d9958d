"""The golden cases of family rewards: trees, length shaping and validation."""

import asyncio
import json
import pathlib

import pytest

from ptjax.envs.environment import Services, Task
from ptjax.rewards import shaping, tree
from ptjax.rewards.failures import InvalidScore

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "rewards.json"
FAMILY = json.loads(GOLDEN.read_text())
TOLERANCE = FAMILY["tolerance"]["float64"]
TASK = Task("golden", 0, "train", (), {})


def number(value):
  return float(value) if value in ("nan", "inf", "-inf") else value


def build(spec):
  if "children" not in spec:
    low, high = spec.get("range", (-float("inf"), float("inf")))
    return tree.Leaf(spec["name"], lambda *_: number(spec["value"]), low, high)
  return tree.Node(
    spec["name"],
    tuple(
      tree.Child(child["weight"], build(child["node"]), child.get("optional", False))
      for child in spec["children"]
    ),
    tuple(tree.Gate(build(gate["node"]), gate["min"]) for gate in spec.get("gates", ())),
    spec.get("gate_value", 0.0),
  )


def run_tree(inputs):
  """The golden cases name nodes, we record paths; their names are unique."""
  rewards = tree.RewardTree(build(inputs["tree"]))
  scores = asyncio.run(tree.evaluate(rewards, TASK, "", Services()))
  assert (scores.failure is None) == (scores.values[""] is not None)
  values = {path.split("/")[-1] or "total": value for path, value in scores.values.items()}
  return {"value": scores.values[""], "values": values}


def run_validate(inputs):
  rewards = [number(reward) for reward in inputs["rewards"]]
  return {"rewards": shaping.validate(rewards, *inputs["range"])}


OPS = {
  "tree": run_tree,
  "overlong": lambda inputs: {"penalties": shaping.overlong_penalties(**inputs)},
  "length_bonus": lambda inputs: {"bonus": shaping.length_bonuses(**inputs)},
  "validate": run_validate,
}


def assert_close(got, want):
  if isinstance(want, dict):
    assert got.keys() == want.keys()
    for key, item in want.items():
      assert_close(got[key], item)
  elif isinstance(want, list):
    assert len(got) == len(want)
    for got_item, item in zip(got, want, strict=True):
      assert_close(got_item, item)
  elif want is None:
    assert got is None
  else:
    assert abs(got - want) <= TOLERANCE["atol"] + TOLERANCE["rtol"] * abs(want)


@pytest.mark.parametrize("case", FAMILY["cases"], ids=lambda case: case["id"])
def test_golden(case):
  run = OPS[case["op"]]
  if "error" in case["expected"]:
    with pytest.raises((ValueError, InvalidScore), match=case["expected"]["error"]):
      run(case["inputs"])
  else:
    assert_close(run(case["inputs"]), case["expected"])
