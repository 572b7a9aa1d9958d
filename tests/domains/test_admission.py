"""Both domains are admitted; a domain with a fault is not."""

import asyncio
import dataclasses

import pytest

from ptjax.domains import admission, arithmetic, catalog, code
from ptjax.envs.environment import Services
from ptjax.rewards import tree

# The attacks on code define `f`, so they are strongest where that is the name asked for.
CASES = {
  "addends": (catalog.DOMAINS["addends"], range(50)),
  "arithmetic": (catalog.DOMAINS["arithmetic"], range(50)),
  "code": (catalog.DOMAINS["code"], range(1)),
  "code_f": (lambda: code.build(code.Config(functions=("f",))), range(2)),
}


@pytest.mark.parametrize("name", CASES)
def test_admitted(name, with_sandbox):
  build, seeds = CASES[name]
  domain = build()
  assert with_sandbox(lambda services: admission.admit(domain, seeds, services)) == []


def faults(**changes):
  domain = dataclasses.replace(arithmetic.build(), **changes)
  return {f.fault for f in asyncio.run(admission.admit(domain, [0], Services()))}


def test_refuses_tasks_of_another_name():
  assert any("of domain 'arithmetic', which a run" in fault for fault in faults(name="sums"))


def test_refuses_an_oracle_that_fails():
  assert any("the oracle earns" in fault for fault in faults(oracle=lambda task: "?"))


def test_refuses_a_grader_that_pays_for_garbage():
  rewards = tree.general_domain(
    tree.Leaf("general", lambda *_: 1.0),
    tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", lambda *_: 1.0)),)),
  )
  assert any("worthless answer earns" in fault for fault in faults(rewards=rewards))


def test_refuses_a_grader_that_is_not_deterministic():
  drift = iter(range(1000))
  rewards = tree.general_domain(
    tree.Leaf("general", lambda *_: 1.0 / (1 + next(drift))),
    tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", lambda *_: 0.0)),)),
  )
  assert any("and then" in fault for fault in faults(rewards=rewards))


def test_refuses_scores_out_of_range():
  rewards = tree.general_domain(
    tree.Leaf("general", lambda *_: 7.0, high=10.0),
    tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", lambda *_: 0.0)),)),
  )
  assert any("out of [0, 1]" in fault for fault in faults(rewards=rewards))
