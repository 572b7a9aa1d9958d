"""Two two-digit numbers with a given sum: many right answers, and room for text after them.

Small enough for models of bytes that are trained in a minute. The reproductions of papers
(`configs/papers`) use it: whether an answer is right does not depend on what follows it, so length
and diversity move only where the objective moves them.
"""

import random
import re

from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

SMALLEST, LARGEST = 10, 99

_ANSWER = re.compile(r"(\d\d)\+(\d\d)(?!\d)")


def parse_answer(response: str) -> tuple[int, int] | None:
  """The two numbers that a response begins with; None where it begins with none."""
  match = _ANSWER.match(response)
  return None if match is None else (int(match[1]), int(match[2]))


def grade_answer(task: Task, response: str, services: Services) -> float:
  """1 where both numbers have two digits and the right sum, else 0."""
  del services
  numbers = parse_answer(response)
  if numbers is None or min(numbers) < SMALLEST:
    return 0.0
  return float(sum(numbers) == task.data["sum"])


def oracle(task: Task) -> str:
  """The answer whose first number is the smallest."""
  first = max(SMALLEST, task.data["sum"] - LARGEST)
  return f"{first}+{task.data['sum'] - first}"


def make_task(seed: int, split: Split) -> Task:
  """The sum of two random numbers; its messages hold nothing but the sum."""

  def question(rng: random.Random) -> int:
    return rng.randint(SMALLEST, LARGEST) + rng.randint(SMALLEST, LARGEST)

  total = draw(question, str, seed, split)
  return Task("addends", seed, split, ({"role": "user", "content": str(total)},), {"sum": total})


def build() -> Domain:
  """Makes the domain."""
  return Domain(
    name="addends",
    family="reasoning",
    license="Apache-2.0",
    source="ptjax",
    make_task=make_task,
    rewards=tree.RewardTree(
      tree.Node("reward", (tree.Child(1.0, tree.Leaf("answer", grade_answer)),))
    ),
    passed=lambda rewards: rewards["answer"] == 1.0,
    oracle=oracle,
    attacks=("", "+", "00+00", "5+5", "99+99+99", "1e+10", "-10+30"),
  )


DOMAINS = {"addends": build}
