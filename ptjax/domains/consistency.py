"""Factual consistency: which claims does a given text support, contradict, or say nothing about?

The text, made by a program, is about invented people; every verdict is asked for equally often, so
that an answer which gives all claims the same one earns nothing.
"""

import dataclasses
import random
import re

from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

VERDICTS = ("supported", "contradicted", "unknown")

_NAMES = (
  *("Amara", "Bruno", "Celia", "Dario", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas"),
  *("Kiran", "Leila", "Mateo", "Nadia", "Otto", "Petra", "Quinn", "Rosa", "Stefan", "Tara"),
)
# How a fact is told, how a claim restates it, and its values.
_FACTS = {
  "home": ("{name} lives in {value}.", "The home of {name} is in {value}.",
           ("Oslo", "Lima", "Dakar", "Riga", "Quito", "Hanoi")),
  "work": ("{name} earns a living as a {value}.", "{name} works as a {value}.",
           ("baker", "pilot", "nurse", "mason", "tailor", "judge")),
  "age": ("{name} turned {value} last month.", "{name} is {value} years old.",
          tuple(str(age) for age in range(21, 70))),
  "pet": ("{name} keeps a {value} at home.", "The pet of {name} is a {value}.",
          ("cat", "parrot", "turtle", "ferret", "rabbit", "gecko")),
  "dish": ("Nothing pleases {name} more than {value}.", "The favourite food of {name} is {value}.",
           ("soup", "rice", "dumplings", "lentils", "noodles", "pancakes")),
}  # fmt: skip

_LINE = re.compile(r"\s*(\d+)\s*[.:)]\s*(\w+)\s*\.?\s*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Config:
  """Size of a task.

  Attributes:
    people: of the text.
    facts: told of each, of the five that there are; the others are what it says nothing about.
    claims_each: claims for each of the three verdicts.
  """

  people: int = 3
  facts: int = 3
  claims_each: int = 1

  def __post_init__(self):
    if not 1 <= self.people <= len(_NAMES) or not 1 <= self.facts < len(_FACTS):
      raise ValueError(
        f"people {self.people} must be in 1..{len(_NAMES)}, facts {self.facts} in "
        f"1..{len(_FACTS) - 1}"
      )
    most = self.people * min(self.facts // 2, len(_FACTS) - self.facts)
    if not 1 <= self.claims_each <= most:
      raise ValueError(
        f"claims_each {self.claims_each} must be in 1..{most} with {self.people} people and "
        f"{self.facts} facts each; raise people"
      )


@dataclasses.dataclass(frozen=True)
class Question:
  """The text, the claims, and the verdict on each."""

  passage: str
  claims: tuple[str, ...]
  verdicts: tuple[str, ...]

  @property
  def text(self) -> str:
    claims = "\n".join(f"{i}. {claim}" for i, claim in enumerate(self.claims, start=1))
    return (
      f"{self.passage}\n\nDoes this text support each claim, contradict it, or not say?\n{claims}\n"
      f'Answer with one line a claim, as "1: {VERDICTS[0]}", with {", ".join(VERDICTS[:2])} or '
      f"{VERDICTS[2]}."
    )


def read_answer(response: str) -> dict[int, str]:
  """The verdict by number of the claim; other lines count for nothing, and of two the last does."""
  lines = (_LINE.fullmatch(line) for line in response.splitlines())
  return {int(m[1]): m[2].casefold() for m in lines if m is not None and len(m[1]) < 4}


def grade_format(task: Task, response: str, services: Services) -> float:
  """1 for one line a claim, each with a known verdict, and nothing else."""
  del services
  lines = [line for line in response.splitlines() if line.strip()]
  read = read_answer(response)
  wanted = set(range(1, len(task.data["verdicts"]) + 1))
  known = set(read.values()) <= set(VERDICTS)
  return float(len(lines) == len(wanted) and set(read) == wanted and known)


def grade_verdicts(task: Task, response: str, services: Services) -> float:
  """Share of the right verdicts above a third, where 0 is what one verdict for all would earn."""
  del services
  read, truth = read_answer(response), task.data["verdicts"]
  right = sum(read.get(i) == verdict for i, verdict in enumerate(truth, start=1))
  return max(0.0, (right / len(truth) - 1 / len(VERDICTS)) / (1 - 1 / len(VERDICTS)))


def oracle(task: Task) -> str:
  """The right verdicts."""
  return "\n".join(f"{i}: {v}" for i, v in enumerate(task.data["verdicts"], start=1))


def make_question(rng: random.Random, config: Config) -> Question:
  """Draws the people, what is told of them, and the claims."""
  people = rng.sample(_NAMES, config.people)
  told, untold = {}, []
  for name in people:
    kinds = rng.sample(list(_FACTS), len(_FACTS))
    told |= {(name, kind): rng.choice(_FACTS[kind][2]) for kind in kinds[: config.facts]}
    untold += [(name, kind) for kind in kinds[config.facts :]]
  keys = rng.sample(list(told), 2 * config.claims_each)
  claims = [(key, told[key], "supported") for key in keys[: config.claims_each]]
  for key in keys[config.claims_each :]:
    others = [value for value in _FACTS[key[1]][2] if value != told[key]]
    claims.append((key, rng.choice(others), "contradicted"))
  for key in rng.sample(untold, config.claims_each):
    claims.append((key, rng.choice(_FACTS[key[1]][2]), "unknown"))
  rng.shuffle(claims)
  sentences = [_FACTS[kind][0].format(name=n, value=value) for (n, kind), value in told.items()]
  rng.shuffle(sentences)
  return Question(
    " ".join(sentences),
    tuple(_FACTS[kind][1].format(name=n, value=value) for (n, kind), value, _ in claims),
    tuple(verdict for *_, verdict in claims),
  )


def build(config: Config | None = None) -> Domain:
  """Makes the domain."""
  config = config or Config()

  def make_task(seed: int, split: Split) -> Task:
    drawn = draw(lambda rng: make_question(rng, config), lambda q: q.text, seed, split)
    messages = ({"role": "user", "content": drawn.text},)
    return Task("consistency", seed, split, messages, {"verdicts": drawn.verdicts})

  same = tuple("\n".join(f"{i}: {v}" for i in range(1, 100)) for v in VERDICTS)
  return Domain(
    name="consistency",
    family="general",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Leaf("general", grade_format),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("verdicts", grade_verdicts)),)),
    ),
    passed=lambda rewards: rewards["domain/verdicts"] == 1.0,
    oracle=oracle,
    attacks=(*same, " ".join(VERDICTS), "1: supported contradicted unknown", "1: yes\n2: no"),
  )


DOMAINS = {"consistency": build}
