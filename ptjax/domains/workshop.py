"""A long errand: make a product from raw materials by way of others, with stations that fail.

The book of recipes is in the task; what it takes in all, and in which order, has to be planned.
Some stations turn out to be out of order when they are first used: the step fails, and goes on
after the station was tended. Credit is given for each intermediate product that was made.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.context import Context, Episodic, Tool, converse
from ptjax.envs.environment import Budget, Episode, Services, Split, Task
from ptjax.envs.scripted import Answer, Said
from ptjax.envs.subtasks import plan_tool, played, subtasks_of
from ptjax.envs.tools import Parameter, ToolCall, ToolSpec
from ptjax.rewards import tree

RAW = ("clay", "flax", "ore", "reed", "resin", "salt", "sand", "wool")
STATIONS = ("anvil", "kiln", "loom", "vat")
MOST = 99  # pieces in one call
_FIRST, _LAST = ("bor", "cal", "dun", "fen", "gor", "lim", "mar", "tol"), ("ack", "et", "in", "usk")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """One piece of `product` takes so many pieces of each input, at a station."""

  product: str
  inputs: Mapping[str, int]
  station: str


@dataclasses.dataclass(frozen=True)
class Errand:
  """What is asked: recipes, of which the last makes the goal, and some lead nowhere."""

  recipes: tuple[Recipe, ...]
  goal: str

  def needed(self) -> Counter[str]:
    """Pieces of everything that the goal takes, raw materials and itself included."""
    total = Counter({self.goal: 1})
    for recipe in reversed(self.recipes):  # inputs come before what is made of them
      for item, count in recipe.inputs.items():
        total[item] += count * total[recipe.product]
    return Counter({item: n for item, n in total.items() if n})

  def products(self) -> tuple[str, ...]:
    """Those that the goal takes, in an order in which they can be made; the goal is last."""
    needed = self.needed()
    return tuple(recipe.product for recipe in self.recipes if needed[recipe.product])


def _draw_errand(rng: random.Random) -> Errand:
  names = rng.sample([a + b for a in _FIRST for b in _LAST], rng.randint(4, 6))
  recipes: list[Recipe] = []
  for i, name in enumerate(names):
    raw = rng.sample(RAW, rng.randint(1, 2))
    made = rng.sample(names[:i], min(i, rng.randint(1, 2)))
    inputs = {item: rng.randint(1, 3) for item in raw} | {item: rng.randint(1, 2) for item in made}
    recipes.append(Recipe(name, inputs, rng.choice(STATIONS)))
  return Errand(tuple(recipes), names[-1])


def _text(errand: Errand, order: list[Recipe]) -> str:
  lines = [
    f"- {recipe.product}: {', '.join(f'{n} {item}' for item, n in recipe.inputs.items())}; "
    f"at the {recipe.station}"
    for recipe in order
  ]
  return (
    f"Make one {errand.goal}. Gather {', '.join(RAW[:-1])} and {RAW[-1]}; all else is made by "
    "these recipes, each for one piece:\n" + "\n".join(lines) + "\nSet a plan first. A station "
    "that is out of order has to be tended before it is used again. Write a message without a "
    "call when you are done."
  )


def make_task(seed: int, split: Split) -> Task:
  """An errand; which stations fail is not told."""

  def question(rng: random.Random) -> tuple[Errand, str]:
    errand = _draw_errand(rng)
    return errand, _text(errand, rng.sample(errand.recipes, len(errand.recipes)))

  errand, text = draw(question, lambda q: q[1], seed, split)
  used = sorted({r.station for r in errand.recipes if r.product in errand.products()})
  rng = random.Random(f"{seed}/stations")
  broken = tuple(rng.sample(used, rng.randint(1, min(2, len(used)))))
  data = {"errand": errand, "broken": broken}
  return Task("workshop", seed, split, ({"role": "user", "content": text},), data)


@dataclasses.dataclass
class _World:
  """What there is in the workshop."""

  recipes: Mapping[str, Recipe]
  broken: set[str]
  stock: Counter[str] = dataclasses.field(default_factory=Counter)

  def shown(self) -> str:
    return ", ".join(f"{n} {item}" for item, n in sorted(self.stock.items()) if n) or "nothing"


async def episode(task: Task, ctx: Context) -> None:
  """Sets the workshop up, then answers calls until there is none."""
  errand: Errand = task.data["errand"]
  recipes = {recipe.product: recipe for recipe in errand.recipes}
  ctx.artifacts["world"] = _World(recipes, set(task.data["broken"]))
  await converse(task, ctx)


async def gather(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """Raw material, as much as is asked for."""
  world, item, count = ctx.artifacts["world"], arguments["item"], arguments["count"]
  if item not in RAW:
    return f"error: {item[:40]!r} cannot be gathered; there is {', '.join(RAW)}"
  if not 1 <= count <= MOST:
    return f"error: count {count} must be in 1..{MOST}"
  world.stock[item] += count
  return f"you have {world.shown()}"


async def make(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """Pieces of a product, or what stands in the way; all of them or none."""
  world, name, count = ctx.artifacts["world"], arguments["product"], arguments["count"]
  if name not in world.recipes:
    return f"error: there is no recipe for {name[:40]!r}"
  if not 1 <= count <= MOST:
    return f"error: count {count} must be in 1..{MOST}"
  recipe, steps = world.recipes[name], subtasks_of(ctx)
  lacking = [f"{n * count} {i}" for i, n in recipe.inputs.items() if world.stock[i] < n * count]
  if lacking:
    steps.fail(name)
    return _told(f"error: it takes {', '.join(lacking)}; you have {world.shown()}", steps.shown())
  if recipe.station in world.broken:
    steps.fail(name)
    return _told(f"error: the {recipe.station} is out of order; tend it", steps.shown())
  for item, n in recipe.inputs.items():
    world.stock[item] -= n * count
  world.stock[name] += count
  for _ in range(count):
    steps.succeed(name)
  return _told(f"you have {world.shown()}", steps.shown())


async def tend(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """Sets a station right."""
  world, station = ctx.artifacts["world"], arguments["station"]
  if station not in STATIONS:
    return f"error: there is no station {station[:40]!r}; there is {', '.join(STATIONS)}"
  world.broken.discard(station)
  return f"the {station} is in order"


def _told(text: str, plan: str) -> str:
  return f"{text}\n{plan}" if plan else text


_COUNT = {"count": Parameter("integer")}
TOOLS = (
  plan_tool("the name of a product"),
  Tool(ToolSpec("gather", "Gets raw material.", {"item": Parameter("string")} | _COUNT), gather),
  Tool(ToolSpec("make", "Makes pieces.", {"product": Parameter("string")} | _COUNT), make),
  Tool(ToolSpec("tend", "Sets a station right.", {"station": Parameter("string")}), tend),
)


def grade_goal(task: Task, episode: Episode, services: Services) -> float:
  """1 where the goal is there at the end."""
  del services
  return float(episode.artifacts["world"].stock[task.data["errand"].goal] > 0)


def grade_subtasks(task: Task, episode: Episode, services: Services) -> float:
  """Mean over the products needed of the share of the pieces needed that were made."""
  del services
  errand, done = task.data["errand"], played(episode.artifacts).done
  needed = errand.needed()
  shares = [min(done[name] / needed[name], 1.0) for name in errand.products()]
  return sum(shares) / len(shares)


def grade_plan(task: Task, episode: Episode, services: Services) -> float:
  """1 where the first plan came before the first step and was a right order of what is needed."""
  del services
  errand, steps = task.data["errand"], played(episode.artifacts)
  if not steps.plans or steps.begun:
    return 0.0
  plan, products = steps.plans[0], errand.products()
  recipes = {recipe.product: recipe for recipe in errand.recipes}
  if sorted(plan) != sorted(products):
    return 0.0
  made = [
    recipes[name].inputs.keys() & set(products) <= set(plan[:i]) for i, name in enumerate(plan)
  ]
  return float(all(made))


def grade_recovery(task: Task, episode: Episode, services: Services) -> float:
  """Share of the steps that failed that succeeded later; 0 where nothing succeeded."""
  del task, services
  steps = played(episode.artifacts)
  return steps.recovered if steps.done else 0.0


def grade_calls(task: Task, episode: Episode, services: Services) -> float:
  """Share of the calls that were well-formed; 0 without one."""
  del task, services
  return episode.calls.get("run", 0) / max(sum(episode.calls.values()), 1)


def oracle(task: Task) -> Answer:
  """Plans, gathers, makes each product, and tends a station when it has failed."""
  errand: Errand = task.data["errand"]
  needed, products = errand.needed(), errand.products()
  recipes = {recipe.product: recipe for recipe in errand.recipes}
  turns: list[Said] = [ToolCall("plan", {"steps": list(products)})]
  turns += [ToolCall("gather", {"item": i, "count": needed[i]}) for i in RAW if needed[i]]
  broken = set(task.data["broken"])
  for name in products:
    made = ToolCall("make", {"product": name, "count": needed[name]})
    station = recipes[name].station
    if station in broken:
      turns += [made, ToolCall("tend", {"station": station})]
      broken.remove(station)
    turns.append(made)
  return (*turns, f"There is one {errand.goal}.")


ATTACKS: tuple[Answer, ...] = (
  "It is done.",
  (ToolCall("plan", {"steps": ["everything"]}), "It is done."),
  (ToolCall("plan", {"steps": [1]}), ToolCall("plan", {"steps": []}), "It is done."),
  (*(ToolCall("gather", {"item": item, "count": MOST}) for item in RAW), "It is done."),
  (ToolCall("gather", {"item": "clay", "count": -5}), ToolCall("gather", {"item": "", "count": 1})),
  (*(ToolCall("tend", {"station": s}) for s in (*STATIONS, "goal")), "It is done."),
  (ToolCall("make", {"product": "goal", "count": 10**30}), "It is done."),
)


def build() -> Domain:
  """Makes the domain."""
  begun = tree.Gate(tree.EpisodeLeaf("begun", grade_subtasks), 1e-9)
  domain = tree.Node(
    "domain",
    (
      tree.Child(0.6, tree.EpisodeLeaf("goal", grade_goal)),
      tree.Child(0.25, tree.EpisodeLeaf("subtasks", grade_subtasks)),
      tree.Child(0.15, tree.EpisodeLeaf("plan", grade_plan)),
    ),
    gates=(begun,),
  )
  general = tree.Node(
    "general",
    (
      tree.Child(0.5, tree.EpisodeLeaf("calls", grade_calls)),
      tree.Child(0.5, tree.EpisodeLeaf("recovery", grade_recovery)),
    ),
  )
  budget = Budget(turns=28, tool_calls=36, wall_s=120.0)
  return Domain(
    name="workshop",
    family="planning",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(general, domain),
    passed=lambda rewards: rewards.get("domain/goal") == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    play=Episodic(episode, tools=TOOLS, budget=budget),
  )


DOMAINS = {"workshop": build}
