"""Arithmetic from reasoning-gym's seeded generators, scored by their own scorers."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from ptjax.domains import generators
from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

# A sign belongs to the number unless it follows a digit or a closing bracket, as the
# minus of a difference does: "x = -5" ends in -5, "8-5" in 5.
_NUMBER = re.compile(r"(?:(?<![\d)])[-+])?\d(?:[\d,]*\d)?(?:\.\d+)?")

# What an answer has to look like, and the answer that a result makes.
_FORMS = {
  "bare": (re.compile(r"\s*-?\d+\.?\s*"), "{}"),
  # A small model is right far more often where it writes the sum down first. A general reward
  # that a bare guess earns too drew some runs into guessing: sure of 0.3, never right.
  "equation": (re.compile(r".*=\s*-?\d+\.?\s*", re.DOTALL), "= {}"),
}

CHAIN_SUM: Mapping[str, Any] = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


@dataclasses.dataclass(frozen=True)
class Config:
  """Which tasks.

  Attributes:
    name: name of the domain.
    generator: name of a reasoning-gym dataset whose answers are numbers.
    parameters: keyword arguments of that dataset's config.
    instruction: sentence after the question.
    form: what earns the general part of the reward: equation, an answer that ends in an equals
      sign and a number; bare, one that is a number and nothing else.
    partial_credit: whether a score under 1 of the dataset's scorer counts. Those scorers give
      some of it to any answer that contains the right one ("-5" or "15" for "5").
  """

  name: str = "arithmetic"
  generator: str = "chain_sum"
  parameters: Mapping[str, Any] = dataclasses.field(default_factory=lambda: CHAIN_SUM)
  instruction: str = "Write the sum and its result."
  form: Literal["equation", "bare"] = "equation"
  partial_credit: bool = False

  def __post_init__(self):
    if self.form not in _FORMS:
      raise ValueError(f"form {self.form!r} is unknown; use {' or '.join(_FORMS)}")


def extract_answer(response: str) -> str | None:
  """The last number of a text with its sign, or None; one parser for training and evaluation."""
  numbers = _NUMBER.findall(response)
  return numbers[-1] if numbers else None


def build(config: Config | None = None) -> Domain:
  """Makes the domain; raises ValueError for an unknown generator or wrong parameters."""
  config = config or Config()
  dataset = generators.dataset(config.generator, config.parameters)
  pattern, answer = _FORMS[config.form]

  def make_task(seed: int, split: Split) -> Task:
    entry = draw(
      lambda rng: dataset[rng.randrange(generators.num_tasks(config.generator))],
      lambda entry: entry["question"],
      seed,
      split,
    )
    content = f"{entry['question']}\n{config.instruction}"
    messages = ({"role": "user", "content": content},)
    return Task(config.name, seed, split, messages, {"entry": entry})

  def grade_format(task: Task, response: str, services: Services) -> float:
    del task, services
    return float(pattern.fullmatch(response) is not None)

  def grade_answer(task: Task, response: str, services: Services) -> float:
    del services
    score = dataset.score_answer(extract_answer(response), task.data["entry"])
    return score if config.partial_credit or score == 1.0 else 0.0

  return Domain(
    name=config.name,
    family="reasoning",
    license="Apache-2.0",
    source=f"reasoning-gym {config.generator}",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", grade_format)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", grade_answer)),)),
    ),
    passed=lambda rewards: rewards["domain/answer"] == 1.0,
    oracle=lambda task: answer.format(task.data["entry"]["answer"]),
    attacks=("", "I do not know.", "nan", "inf", "--", "1" * 5000),
  )


DOMAINS = {"arithmetic": build}
