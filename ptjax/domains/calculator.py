"""Word problems over a price list that only a tool shows: look up, calculate, answer.

The list is invented for each task, so nothing that a model knows stands in for a call. What counts
is the number in the last line, and that every price it needs was looked up in this episode.
"""

import dataclasses
import math
import random
import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

from ptjax.domains.domain import Domain
from ptjax.domains.expressions import ExpressionError, evaluate, written
from ptjax.domains.split import draw
from ptjax.envs.context import Context, Episodic, Tool
from ptjax.envs.environment import Budget, Episode, Services, Split, Task
from ptjax.envs.scripted import Answer
from ptjax.envs.tools import Parameter, ToolCall, ToolSpec
from ptjax.rewards import tree

_LINE = re.compile(r"Answer: (-?[0-9]{1,12}(?:\.[0-9]{1,6})?)")
_KINDS = ("amber", "brass", "cedar", "copper", "felt", "glass", "iron", "oak", "slate", "willow")
_THINGS = ("basket", "bell", "board", "bolt", "buckle", "hinge", "hook", "lamp", "plate", "tile")
_BUYERS = ("A workshop", "A school", "A carpenter", "An inn", "A theatre", "A farm")
ENTRIES = 12  # of a price list


@dataclasses.dataclass(frozen=True)
class Form:
  """A shape of question.

  Attributes:
    text: with the names and numbers of a `Question` in it.
    expression: what to calculate, with prices `{p0}`, `{p1}` in it; its value is the answer.
    items: how many prices it needs.
    whole: the answer is the whole part of the value, not two decimals of it.
  """

  text: str
  expression: str
  items: int
  whole: bool = False


FORMS: tuple[Form, ...] = (
  Form(
    "{buyer} orders {n0} pieces of {i0} and {n1} of {i1}. What does the order cost?",
    "{n0}*{p0} + {n1}*{p1}",
    2,
  ),
  Form(
    "{buyer} orders {n0} pieces of {i0} and {n1} of {i1}, gets {percent} percent off, and pays "
    "{fee} for delivery, which is not reduced. What does it pay?",
    "({n0}*{p0} + {n1}*{p1})*(100 - {percent})/100 + {fee}",
    2,
  ),
  Form(
    "{buyer} has {money} to spend and first buys {n0} pieces of {i0}. How many pieces of {i1} can "
    "it buy with what is left?",
    "({money} - {n0}*{p0})/{p1}",
    2,
    whole=True,
  ),
  Form(
    "{buyer} can take {n0} pieces of {i0} or {n1} pieces of {i1} with {n2} of {i2}. How much more "
    "does the second offer cost than the first? A negative number says that it costs less.",
    "{n1}*{p1} + {n2}*{p2} - {n0}*{p0}",
    3,
  ),
  Form(
    "{buyer} buys {n0} pieces of {i0}, {n1} of {i1} and {n2} of {i2}. What does a piece cost on "
    "average?",
    "({n0}*{p0} + {n1}*{p1} + {n2}*{p2})/({n0} + {n1} + {n2})",
    3,
  ),
)


@dataclasses.dataclass(frozen=True)
class Question:
  """A form with its names and numbers; prices come later, and are not asked."""

  form: Form
  text: str
  items: tuple[str, ...]
  numbers: Mapping[str, int]


def _draw_question(rng: random.Random) -> Question:
  form = rng.choice(FORMS)
  names = [f"{kind} {thing}" for kind in _KINDS for thing in _THINGS]
  items = tuple(rng.sample(names, form.items))
  numbers = {f"n{i}": rng.randint(2, 40) for i in range(form.items)}
  numbers |= {"percent": rng.randint(2, 30), "fee": rng.randint(3, 25)}
  numbers["money"] = rng.randint(2000, 5000)  # more than 40 pieces of anything cost
  shown = {f"i{i}": item for i, item in enumerate(items)} | numbers
  return Question(form, form.text.format(buyer=rng.choice(_BUYERS), **shown), items, numbers)


def make_task(seed: int, split: Split) -> Task:
  """A question, and a price list that holds what it needs among others."""
  question = draw(_draw_question, lambda q: q.text, seed, split)
  rng = random.Random(f"{seed}/prices")
  others = [f"{kind} {thing}" for kind in _KINDS for thing in _THINGS]
  others = [name for name in others if name not in question.items]
  names = sorted([*question.items, *rng.sample(others, ENTRIES - len(question.items))])
  cents = {name: rng.randint(105, 4995) for name in names}
  prices = {name: f"{n // 100}.{n % 100:02d}" for name, n in cents.items()}
  needed = {f"p{i}": prices[item] for i, item in enumerate(question.items)}
  expression = question.form.expression.format(**question.numbers, **needed)
  value = evaluate(expression)
  how = "Round down to a whole number." if question.form.whole else "Round to two decimals."
  content = (
    f"{question.text} Prices are in the shop's list, which a tool looks up by the name of one "
    f"piece. {how} End your last message with a line like this:\nAnswer: 12.50"
  )
  data = {
    "prices": prices,
    "needed": question.items,
    "expression": expression,
    "right": str(math.floor(value)) if question.form.whole else _two_places(value),
  }
  return Task("calculator", seed, split, ({"role": "user", "content": content},), data)


def _two_places(value: Fraction) -> str:
  exact = Decimal(value.numerator) / Decimal(value.denominator)
  return str(exact.quantize(Decimal("0.01"), ROUND_HALF_UP))


async def look_up(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """The price of one piece; remembers which were asked for."""
  prices, name = ctx.task.data["prices"], " ".join(arguments["item"].lower().split())
  if name not in prices:
    return f"error: the list has no {name[:40]!r}"
  ctx.artifacts["looked_up"] = {*ctx.artifacts.get("looked_up", ()), name}
  return f"{name}: {prices[name]} a piece"


async def calculate(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """The value of an expression."""
  del ctx
  try:
    return written(evaluate(arguments["expression"]))
  except ExpressionError as error:
    return f"error: {error}"


async def episode(task: Task, ctx: Context) -> None:
  """Calls are answered until the policy writes a message without one, which is its answer."""
  del task
  while (turn := await ctx.generate()).calls:
    await ctx.answer(turn.calls)
  ctx.artifacts["answer"] = turn.answer


CALCULATE = Tool(
  ToolSpec(
    "calculate",
    "The value of an expression of numbers, + - * / and brackets.",
    {"expression": Parameter("string")},
  ),
  calculate,
)
TOOLS = (
  Tool(ToolSpec("look_up", "The price of one piece.", {"item": Parameter("string")}), look_up),
  CALCULATE,
)


def grade_answer(task: Task, episode: Episode, services: Services) -> float:
  """1 where the last line is the right number, to the last decimal that was asked for."""
  del services
  match = _last_line(episode)
  return float(match is not None and Decimal(match[1]) == Decimal(task.data["right"]))


def grade_looked_up(task: Task, episode: Episode, services: Services) -> float:
  """Share of the prices that the question needs that were looked up."""
  del services
  seen = episode.artifacts.get("looked_up", ())
  return sum(name in seen for name in task.data["needed"]) / len(task.data["needed"])


def grade_format(task: Task, episode: Episode, services: Services) -> float:
  """Half for a last line in the right form, half for calls of which none was malformed."""
  del task, services
  sound = not episode.calls.keys() - {"run"}
  return 0.5 * (_last_line(episode) is not None) + 0.5 * sound


def _last_line(episode: Episode) -> re.Match[str] | None:
  lines = episode.artifacts.get("answer", "").rstrip().splitlines()
  return _LINE.fullmatch(lines[-1]) if lines else None


def oracle(task: Task) -> Answer:
  """A look-up of each price, one calculation, the answer."""
  looked = [ToolCall("look_up", {"item": item}) for item in task.data["needed"]]
  calculated = ToolCall("calculate", {"expression": task.data["expression"]})
  return (*looked, calculated, f"Answer: {task.data['right']}")


def _calculation(text: str) -> ToolCall:
  return ToolCall("calculate", {"expression": text})


ATTACKS: tuple[Answer, ...] = (
  "Answer: 12.50",
  "\n".join(f"Answer: {n}" for n in range(500)),
  "Answer: nan",
  "Answer: 1e3",
  (_calculation("__import__('os').system('id')"), "Answer: 0"),
  (_calculation("9" * 199), _calculation("(" * 199), "Answer: 0"),
  (ToolCall("look_up", {"item": "*"}), ToolCall("look_up", {"item": ""}), "Answer: 0"),
  (ToolCall("look_up", {"item": "price list"}),) * 20,
)


def build() -> Domain:
  """Makes the domain."""
  prices = tree.Gate(tree.EpisodeLeaf("looked_up", grade_looked_up), 1.0)
  answer = tree.Child(1.0, tree.EpisodeLeaf("answer", grade_answer))
  form = tree.Child(1.0, tree.EpisodeLeaf("format", grade_format))
  return Domain(
    name="calculator",
    family="tools",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (form,)), tree.Node("domain", (answer,), gates=(prices,))
    ),
    passed=lambda rewards: rewards.get("domain/answer") == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    play=Episodic(episode, tools=TOOLS, budget=Budget(turns=8, tool_calls=10, wall_s=120.0)),
  )


DOMAINS = {"calculator": build}
