"""Domains whose reward needs a long context: the families `needle`, `ruler` and `filings`.

Where the facts stand is drawn evenly over the text, so that no part of it can be ignored; the depth
of each is in the task. `needle/control` is the same text with a question that tells its own answer:
what a policy gains there, it did not gain by reading.

A domain does not know the policy's tokenizer: its lengths count CHARACTERS_A_TOKEN characters as a
token, which the evaluation (`ptjax.evals`) does not; NAME@LEVEL doubles the length with each level.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

from ptjax.domains.context_tasks import filings, needles, problem, quantities, ruler
from ptjax.domains.context_tasks.needles import Needles
from ptjax.domains.context_tasks.problem import Problem, Room
from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

CHARACTERS_A_TOKEN = 4
SHORTEST = 2048
"""Tokens at level 1, the answer's allowance included."""

_CONTROL = "needle/control"


def estimate(prompt: str, prefix: str) -> int:
  """Tokens of a prompt, by its characters."""
  return math.ceil((len(prompt) + len(prefix)) / CHARACTERS_A_TOKEN)


@dataclasses.dataclass(frozen=True)
class Config:
  """Which problems.

  Attributes:
    task: needle, needle/control, filings, or ruler/ with a name of `ruler.TASKS`.
    tokens: of prompt and answer together.
    count: how they are counted; a tokenizer's own count makes the lengths exact.
  """

  task: str = "needle"
  tokens: int = SHORTEST
  count: problem.Count = estimate

  def __post_init__(self):
    if self.task not in _MAKERS:
      raise ValueError(f"task {self.task!r} is unknown; use one of {', '.join(_MAKERS)}")


def _needle(seed: int, room: Room) -> Problem:
  return needles.make("needle", Needles(), seed, room)


def _control(seed: int, room: Room) -> Problem:
  """A needle problem whose last line says what it asks for."""
  # The added line must fit too.
  inner = dataclasses.replace(room, count=lambda p, prefix: room.count(p + "\n" * 160, prefix))
  made = needles.make(_CONTROL, Needles(), seed, inner)
  return dataclasses.replace(made, prompt=f"{made.prompt}\n(Here it is again: {made.facts[0]})")


_MAKERS: Mapping[str, Callable[[int, Room], Problem]] = {
  "needle": _needle,
  _CONTROL: _control,
  "filings": functools.partial(filings.make, "filings"),
  **{f"ruler/{name}": make for name, make in ruler.TASKS.items()},
}


def build(config: Config | None = None, level: int = 1) -> Domain:
  """Makes the domain; `level` doubles the length with each step above 1."""
  config = config or Config()
  if level < 1:
    raise ValueError(f"level {level} of {config.task} must be 1 or more")
  room = Room(config.tokens * 2 ** (level - 1), config.count)
  make = _MAKERS[config.task]
  name = config.task if level == 1 else f"{config.task}@{level}"

  def make_task(seed: int, split: Split) -> Task:
    made = draw(
      lambda rng: make(rng.getrandbits(48), room),
      lambda made: " ".join((made.task, *made.answers)),
      seed,
      split,
    )
    data = {
      "answers": made.answers,
      "candidates": made.candidates,
      "match": made.match,
      "depths": made.depths,
      "tokens": made.tokens,
    }
    return Task(name, seed, split, ({"role": "user", "content": made.prompt},), data)

  return Domain(
    name=name,
    family=config.task.partition("/")[0],
    license="Apache-2.0",
    source="ptjax; tasks after RULER (Hsieh et al., 2024)",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("brief", _brief)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", _answer)),)),
    ),
    passed=lambda rewards: rewards["domain/answer"] == 1.0,
    oracle=lambda task: ", ".join(task.data["answers"]),
    attacks=("I do not know.", "0000000", "1" * 5000, "AAAAA BBBBB", ", ".join("abcdefgh")),
  )


def _brief(task: Task, response: str, services: Services) -> float:
  """1 for an answer that is there and no longer than three times what was asked for."""
  del services
  most = 60 + 3 * sum(len(answer) + 2 for answer in task.data["answers"])
  return float(0 < len(response.strip()) <= most)


def _answer(task: Task, response: str, services: Services) -> float:
  del services
  if task.data["match"] == "number":
    return float(quantities.agrees(response, task.data["answers"][0]))
  return problem.precise_score(task.data["answers"], task.data["candidates"], response)


DOMAINS = {name: functools.partial(build, Config(name)) for name in _MAKERS}
