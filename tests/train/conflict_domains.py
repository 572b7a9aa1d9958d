"""Domains for a tiny model, one of which pays for what breaks another.

  seven      passes where the answer has a 7
  digits     rewards digits; does no harm
  no_seven   rewards the share of 3, and nothing where there is a 7

Their prompts are alike, so that what one teaches shows in the others.
"""

from collections.abc import Callable

from ptjax.domains.domain import Domain
from ptjax.envs.environment import Split, Task
from ptjax.rewards import tree


def make(name: str, score: Callable[[str], float], right: str) -> Domain:
  """A domain whose reward is a function of the answer alone; more than 1/2 passes."""

  def make_task(seed: int, split: Split) -> Task:
    number = seed % 50 + (50 if split == "heldout" else 0)
    return Task(name, seed, split, ({"role": "user", "content": f"{number}"},), {})

  leaf = tree.Leaf("domain", lambda task, response, services: score(response))
  return Domain(
    name=name,
    family="conflict",
    license="Apache-2.0",
    source="this file",
    make_task=make_task,
    rewards=tree.RewardTree(tree.Node("reward", (tree.Child(1.0, leaf),))),
    passed=lambda rewards: rewards["domain"] > 0.5,
    oracle=lambda task: right,
  )


def has_seven(answer: str) -> float:
  return float("7" in answer)


def digits(answer: str) -> float:
  return sum(c.isdecimal() for c in answer) / max(len(answer), 1)


def threes(answer: str) -> float:
  return 0.0 if "7" in answer else answer.count("3") / max(len(answer), 1)


DOMAINS = {
  "seven": lambda: make("seven", has_seven, "7"),
  "digits": lambda: make("digits", digits, "0"),
  "no_seven": lambda: make("no_seven", threes, "3"),
}
