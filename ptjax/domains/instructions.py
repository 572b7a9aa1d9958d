"""Instruction following: a short text about a city under constraints that a program verifies.

How constraints are asked and checked: `instruction_kinds`.
"""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

from ptjax.domains import instruction_texts as texts
from ptjax.domains.domain import Domain
from ptjax.domains.instruction_kinds import BY_NAME, KINDS, choose, words
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

LEAST_WORDS = 8


@dataclasses.dataclass(frozen=True)
class Config:
  """How many constraints a task has, inclusive."""

  least: int = 1
  most: int = 3

  def __post_init__(self):
    if not 1 <= self.least <= self.most <= 5:
      raise ValueError(
        f"constraints must be 1 <= least <= most <= 5, got least {self.least}, most {self.most}"
      )


@dataclasses.dataclass(frozen=True)
class Question:
  """What is asked: a city, and the parameter of each constraint by its name."""

  city: str
  constraints: Mapping[str, Any]

  @property
  def text(self) -> str:
    asked = [BY_NAME[name].ask(value) for name, value in self.constraints.items()]
    first = (
      f"Write a short text of {LEAST_WORDS} words or more about {self.city}, and name the city."
    )
    return " ".join([first, *asked])


def grade_topic(task: Task, response: str, services: Services) -> float:
  """1 for a text that names the city, is long enough and is not one word over and over."""
  del services
  found = [word.casefold() for word in words(response)]
  varied = len(set(found)) >= LEAST_WORDS
  return float(varied and task.data["city"].casefold() in found)


def grade_constraints(task: Task, response: str, services: Services) -> float:
  """Share of the constraints that the text meets."""
  del services
  met = [BY_NAME[n].met(value, response) for n, value in task.data["constraints"].items()]
  return sum(met) / len(met)


def oracle(task: Task) -> str:
  """A text that meets them all."""
  text = texts.SENTENCES["English"].format(city=task.data["city"])
  for kind in KINDS:
    if kind.name in task.data["constraints"]:
      text = kind.fit(task.data["constraints"][kind.name], text)
  return text


def build(config: Config | None = None) -> Domain:
  """Makes the domain."""
  config = config or Config()

  def question(rng: random.Random) -> Question:
    kinds = choose(rng, rng.randint(config.least, config.most))
    return Question(rng.choice(texts.CITIES), {kind.name: kind.draw(rng) for kind in kinds})

  def make_task(seed: int, split: Split) -> Task:
    drawn = draw(question, lambda q: q.text, seed, split)
    data = {"city": drawn.city, "constraints": drawn.constraints}
    return Task("instructions", seed, split, ({"role": "user", "content": drawn.text},), data)

  topic = tree.Gate(tree.Leaf("topic", grade_topic), minimum=1.0)
  constraints = tree.Child(1.0, tree.Leaf("constraints", grade_constraints))
  return Domain(
    name="instructions",
    family="general",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.RewardTree(
      tree.Node("reward", (tree.Child(1.0, tree.Node("domain", (constraints,), (topic,))),))
    ),
    passed=lambda rewards: rewards.get("domain/constraints") == 1.0,
    oracle=oracle,
    attacks=("I cannot do that.", "{}", '""', "- a\n- b", *texts.CITIES[:3], "Berlin " * 40),
  )


DOMAINS = {"instructions": build}
