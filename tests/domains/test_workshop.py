"""Long errands: plans, the state of their steps, credit for each, recovery after a failure."""

import asyncio
from collections import Counter

import pytest

from ptjax.domains import admission, workshop
from ptjax.domains.domain import grade, grade_answer, play_answer
from ptjax.domains.workshop import Errand, Recipe
from ptjax.envs.environment import Services, Task
from ptjax.envs.tools import ToolCall

DOMAIN = workshop.build()
ERRAND = Errand(
  (
    Recipe("borin", {"clay": 2}, "kiln"),
    Recipe("calet", {"ore": 1}, "anvil"),  # leads nowhere
    Recipe("dunin", {"borin": 2, "salt": 1}, "vat"),
    Recipe("fenet", {"dunin": 1, "borin": 1}, "kiln"),
  ),
  "fenet",
)
TASK = Task("workshop", 0, "train", ({"role": "user", "content": "?"},),
            {"errand": ERRAND, "broken": ("kiln",)})  # fmt: skip


def plan(*steps):
  return ToolCall("plan", {"steps": list(steps)})


def gather(item, count):
  return ToolCall("gather", {"item": item, "count": count})


def make(product, count=1):
  return ToolCall("make", {"product": product, "count": count})


def tend(station):
  return ToolCall("tend", {"station": station})


PLAN = plan("borin", "dunin", "fenet")
START = (gather("clay", 6), gather("salt", 1), make("borin", 3), tend("kiln"), make("borin", 3))
REST = (make("dunin"), make("fenet"), "Done.")


def rewards(*turns, task=TASK):
  return asyncio.run(grade_answer(DOMAIN, task, turns, Services())).rewards


def test_admitted():
  seen = asyncio.run(admission.examine(DOMAIN, range(4), Services()))
  assert seen.findings == ()
  assert seen.guessed == 0


def test_what_it_takes():
  assert ERRAND.needed() == Counter(fenet=1, dunin=1, borin=3, clay=6, salt=1)
  assert ERRAND.products() == ("borin", "dunin", "fenet")


def test_the_oracle_of_a_task_meets_each_failure_once():
  for seed in range(10):
    task = DOMAIN.make_task(seed, "train")
    episode = asyncio.run(play_answer(DOMAIN, task, DOMAIN.oracle(task), Services()))
    failures = [text for text in episode.observations if "is out of order" in text]
    assert len(failures) == len(task.data["broken"]) >= 1
    assert asyncio.run(grade(DOMAIN, task, episode, Services())).rewards[""] == 1


def test_the_state_of_the_steps_is_shown():
  episode = asyncio.run(play_answer(DOMAIN, TASK, (PLAN, *START, *REST), Services()))
  assert episode.observations[0] == "1. borin: open\n2. dunin: open\n3. fenet: open"
  assert episode.observations[3] == (
    "error: the kiln is out of order; tend it\n1. borin: failed\n2. dunin: open\n3. fenet: open"
  )
  assert episode.observations[5] == (
    "you have 3 borin, 1 salt\n1. borin: done\n2. dunin: open\n3. fenet: open"
  )


CREDIT = {
  "all": ((PLAN, *START, *REST), 1, 1, 1, 1),
  "another right order is none where there is one": (
    (plan("dunin", "borin", "fenet"), *START, *REST), 1, 1, 0, 1),
  "a plan with what leads nowhere": (
    (plan("borin", "calet", "dunin", "fenet"), *START, *REST), 1, 1, 0, 1),
  "no plan": ((*START, *REST), 1, 1, 0, 1),
  "a plan after the first step": ((*START, PLAN, *REST), 1, 1, 0, 1),
  "half way": ((PLAN, *START, "Done."), 0, 1 / 3, 1, 1),
  "one piece of three": (
    (PLAN, gather("clay", 2), tend("kiln"), make("borin"), "Done."), 0, 1 / 9, 1, 1),
  "a failure that is left": (
    (PLAN, *START, make("dunin", 2), "Done."), 0, 1 / 3, 1, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CREDIT)
def test_credit_of_each_part(name):
  turns, goal, subtasks, planned, recovery = CREDIT[name]
  got = rewards(*turns)
  parts = {"goal": goal, "subtasks": subtasks, "plan": planned}
  assert {part: got[f"domain/{part}"] for part in parts} == pytest.approx(parts)
  assert got["general/recovery"] == recovery
  assert got["domain"] == pytest.approx(0.6 * goal + 0.25 * subtasks + 0.15 * planned)


def test_a_plan_alone_is_worth_nothing():
  got = rewards(PLAN, "Done.")
  assert (got["domain"], got["general/recovery"]) == (0, 0)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (gather("gold", 1), "error: 'gold' cannot be gathered"),
    (gather("clay", 0), "error: count 0 must be in 1..99"),
    (make("gold"), "error: there is no recipe for 'gold'"),
    (make("borin", 100), "error: count 100 must be in 1..99"),
    (make("dunin"), "error: it takes 2 borin, 1 salt; you have nothing"),
    (tend("oven"), "error: there is no station 'oven'"),
    (plan(), "error: 0 steps; plan 1 to 30"),
    (plan(""), "error: steps must be texts"),
  ],
)
def test_errors_tell_what_to_change(call, message):
  episode = asyncio.run(play_answer(DOMAIN, TASK, (call, "Done."), Services()))
  assert episode.observations[0].startswith(message)
