"""Paths, default weights, typed failures and construction errors of reward trees."""

import asyncio

import pytest

from ptjax.envs.environment import Services, Task
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure, InvalidScore, Unscorable

TASK = Task("toy", 0, "train", (), {"answer": "yes"})


def constant(name, value):
  return tree.Leaf(name, lambda *_: value)


def raising(name, failure):
  def grader(*_):
    raise failure

  return tree.Leaf(name, grader)


def one(name, leaf):
  return tree.Node(name, (tree.Child(1.0, leaf),))


def evaluate(rewards, response=""):
  return asyncio.run(tree.evaluate(rewards, TASK, response, Services()))


def test_default_weights_and_paths():
  rewards = tree.general_domain(
    one("general", constant("format", 0.5)), one("domain", constant("tests", 0.25))
  )
  scores = evaluate(rewards)
  assert scores.values == {
    "general/format": 0.5,
    "general": 0.5,
    "domain/tests": 0.25,
    "domain": 0.25,
    "": pytest.approx(0.3 * 0.5 + 0.7 * 0.25),
  }


def test_plain_and_async_graders_see_task_and_response():
  async def grader(task, response, services):
    await asyncio.sleep(0)
    return float(response == task.data["answer"])

  rewards = tree.general_domain(
    tree.Leaf("general", lambda _task, response, _services: float(response == "yes")),
    tree.Leaf("domain", grader),
  )
  assert evaluate(rewards, "yes").values[""] == 1.0
  assert evaluate(rewards, "no").values[""] == 0.0


@pytest.mark.parametrize("failure", [InfraFailure("box lost"), Unscorable("no verdict")])
def test_failure_leaves_the_root_without_value_and_keeps_the_rest(failure):
  scores = evaluate(tree.general_domain(constant("general", 1.0), raising("domain", failure)))
  assert scores.failure is failure
  assert scores.rewards == {"general": 1.0}


def test_invalid_score_wins_over_an_earlier_failure():
  rewards = tree.general_domain(raising("general", InfraFailure("x")), constant("domain", 1.5))
  with pytest.raises(InvalidScore, match="domain is out of range"):
    evaluate(rewards)


def test_score_that_is_no_number():
  with pytest.raises(InvalidScore, match="domain is not a number"):
    evaluate(tree.general_domain(constant("general", 1.0), constant("domain", "high")))


def test_fault_of_a_grader_passes_through():
  with pytest.raises(KeyError):
    evaluate(tree.general_domain(raising("general", KeyError("bug")), constant("domain", 1.0)))


def test_failed_gate_runs_no_child():
  node = tree.Node(
    "root",
    (tree.Child(1.0, raising("expensive", AssertionError("was run"))),),
    (tree.Gate(constant("honest", 0.0), 1.0),),
    gate_value=-1.0,
  )
  assert evaluate(tree.RewardTree(node)).values == {"honest": 0.0, "": -1.0}


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: tree.Node("n", ()), "do not sum to 1"),
    (lambda: tree.Node("n", (tree.Child(float("nan"), constant("a", 1)),)), ">= 0 and finite"),
    (lambda: one("n", constant("a/b", 1)), "without '/'"),
    (
      lambda: tree.Node(
        "n", (tree.Child(0.5, constant("a", 1)), tree.Child(0.5, constant("a", 1)))
      ),
      "distinct",
    ),
    (lambda: tree.Leaf("a", lambda *_: 0, low=1.0, high=0.0), "range of a is empty"),
  ],
)
def test_construction_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()
