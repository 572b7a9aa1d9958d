"""Bug fixing: every bug breaks tests, its repair is found, and the bug left in earns nothing."""

import asyncio
import random

import pytest

from ptjax.domains import bugfix
from ptjax.domains.admission import admit
from ptjax.domains.bugfix_repositories import REPOSITORIES
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services

DOMAIN = bugfix.build()


@pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda r: r.name)
def test_every_bug_is_there_once_and_breaks_enough_tests(repository):
  for bug in repository.bugs:
    assert repository.files[bug.file].count(bug.right) == 1, bug
    for constant in (repository.constants[0], repository.constants[-1]):
      question = bugfix.Question(repository, constant, bug)
      broken, sound = bugfix.find_tests(random.Random(0), question)
      assert len(broken) >= 3, bug
      assert not [test for test in broken if test in sound]


def test_the_shown_test_is_no_hidden_one():
  for seed in range(20):
    task = DOMAIN.make_task(seed, "train")
    for test in (*task.data["broken"], *task.data["sound"]):
      shown = f"({', '.join(map(repr, test.arguments))}) == {test.expected!r}"
      assert shown not in task.messages[0]["content"]


def test_admitted(with_sandbox):
  assert with_sandbox(lambda services: admit(DOMAIN, range(1), services)) == []


def test_rewards(with_sandbox):
  task = DOMAIN.make_task(0, "train")
  name, right = task.data["oracle"]
  entry = task.data["entry"]
  hard_coded = f"def {entry}(*a): return {task.data['broken'][0].expected!r}\n"
  last = list(task.data["files"])[-1]
  known = [*task.data["broken"][:2], *task.data["sound"]]
  table = {repr(test.arguments): test.expected for test in known}
  half = f"def {entry}(*a): return {table!r}[repr(list(a))]\n"

  def block(file, text):
    return f"```python\n# file: {file}\n{text}```"

  responses = {
    block(name, right): (1.0, 1.0),
    "It is this: " + block(name, right): (0.5, 1.0),
    block(name, task.data["files"][name]): (1.0, 0.0),
    block(last, hard_coded): (1.0, 0.0),
    block(last, half): (1.0, 2 / len(task.data["broken"])),
    block("other.py", right): (0.0, 0.0),
    right: (0.0, 0.0),
  }

  async def use(services):
    return await asyncio.gather(*(grade_response(DOMAIN, task, r, services) for r in responses))

  for graded, (form, tests) in zip(with_sandbox(use), responses.values(), strict=True):
    assert graded.rewards["general/format"] == form
    assert graded.rewards["domain/tests"] == tests
    assert graded.passed is (tests == 1.0)


def test_without_a_sandbox_it_says_so():
  task = DOMAIN.make_task(0, "train")
  with pytest.raises(ValueError, match="domain bugfix needs a sandbox; give Services a pool"):
    asyncio.run(grade_response(DOMAIN, task, bugfix.oracle(task), Services()))
