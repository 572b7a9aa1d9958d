"""Questions over an archive of annual reports that only tools open: search, read pages, calculate.

The questions are those of `context_tasks.filings`: figures of tables and notes, to be joined. The
archive is too large to be read through: about 5,000 tokens, twice as many with each level, a
million at level 9. What counts is the number with its unit, and that every page it needs was read.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.domains import calculator
from ptjax.domains.context_tasks import filing_blocks, filings, quantities
from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.context import Context, Episodic, Tool
from ptjax.envs.environment import Budget, Episode, Services, Split, Task
from ptjax.envs.scripted import Answer
from ptjax.envs.tools import Parameter, ToolCall, ToolSpec
from ptjax.rewards import tree

SMALLEST = 20_000  # characters at level 1
MOST_FOUND = 10  # pages that a search names
_ANSWER = re.compile(r"Answer: (.+)")


@dataclasses.dataclass(frozen=True)
class Archive:
  """Pages by number, from 1; the needed ones are `needed`."""

  pages: tuple[str, ...]
  needed: tuple[int, ...]


def make_archive(rng: random.Random, filing, asked: filings.Asked, characters: int) -> Archive:
  """The blocks of the report, of ones easily mistaken for it, and of others, shuffled."""
  own = filing_blocks.blocks(rng, filing)
  pages = list(dict.fromkeys([*asked.needed, *own, *filings.confusing(rng, filing)]))
  size = sum(map(len, pages))
  for block in filings.archive(rng, filing.firm):
    if size >= characters:
      break
    pages.append(block)
    size += len(block)
  rng.shuffle(pages)
  return Archive(tuple(pages), tuple(pages.index(block) + 1 for block in asked.needed))


@functools.lru_cache(maxsize=64)
def archive_of(seed: int, asked: str, level: int) -> Archive:
  """The archive of a task: made when an episode wants it, for a million tokens are much to keep."""
  filing, question = filings.ask(random.Random(asked))
  rng = random.Random(f"{seed}/archive")
  return make_archive(rng, filing, question, SMALLEST * 2 ** (level - 1))


def _archive(task: Task) -> Archive:
  return archive_of(task.seed, task.data["asked"], task.data["level"])


def search_pages(pages: Sequence[str], words: str) -> str:
  """Numbers and titles of the pages that hold all of the words, whatever their case."""
  wanted = words.lower().split()
  if not wanted:
    return "error: no words to search for"
  found = [n for n, page in enumerate(pages, 1) if all(w in page.lower() for w in wanted)]
  if not found:
    return "no page holds all of these words"
  lines = [f"page {n}: {title(pages[n - 1])}" for n in found[:MOST_FOUND]]
  if len(found) > MOST_FOUND:
    lines.append(f"and {len(found) - MOST_FOUND} more; add words")
  return "\n".join(lines)


def title(page: str) -> str:
  """The first line of a page."""
  return page.partition("\n")[0]


async def search(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """What `search_pages` finds in the archive."""
  return search_pages(_archive(ctx.task).pages, arguments["words"])


async def read(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """The text of a page; remembers which were read."""
  pages, number = _archive(ctx.task).pages, arguments["page"]
  if not 1 <= number <= len(pages):
    return f"error: there is no page {number}; pages are 1 to {len(pages)}"
  ctx.artifacts["read"] = {*ctx.artifacts.get("read", ()), number}
  return pages[number - 1]


TOOLS = (
  Tool(
    ToolSpec(
      "search",
      f"Numbers and titles of up to {MOST_FOUND} pages that hold all of some words.",
      {"words": Parameter("string")},
    ),
    search,
  ),
  Tool(ToolSpec("read", "The text of a page.", {"page": Parameter("integer")}), read),
  calculator.CALCULATE,
)


def make_task(seed: int, split: Split, level: int) -> Task:
  """A question; its archive is made from the same seed when it is opened."""

  def question(rng: random.Random) -> tuple[str, filings.Asked]:
    asked = f"filings/{rng.getrandbits(48)}"
    return asked, filings.ask(random.Random(asked))[1]

  asked, drawn = draw(question, lambda q: q[1].question, seed, split)
  content = (
    f"{drawn.question}\nThe archive of annual reports is searched and read with tools. End your "
    f"last message with a line like this, the number with its unit:\nAnswer: -12.34 million crowns"
  )
  data = {"asked": asked, "level": level, "right": drawn.answer}
  return Task(_name(level), seed, split, ({"role": "user", "content": content},), data)


def _name(level: int) -> str:
  return "filings/tools" if level == 1 else f"filings/tools@{level}"


def grade_answer(task: Task, episode: Episode, services: Services) -> float:
  """1 where the last line gives the quantity, within its tolerance, see `quantities.agrees`."""
  del services
  said = _last_line(episode)
  return float(said is not None and quantities.agrees(said, task.data["right"]))


def grade_read(task: Task, episode: Episode, services: Services) -> float:
  """Share of the needed pages that were read."""
  del services
  needed, seen = _archive(task).needed, episode.artifacts.get("read", ())
  return sum(page in seen for page in needed) / len(needed)


def grade_format(task: Task, episode: Episode, services: Services) -> float:
  """Half for a last line in the right form, half for calls of which none was malformed."""
  del task, services
  sound = not episode.calls.keys() - {"run"}
  return 0.5 * (_last_line(episode) is not None) + 0.5 * sound


def _last_line(episode: Episode) -> str | None:
  lines = episode.artifacts.get("answer", "").rstrip().splitlines()
  found = _ANSWER.fullmatch(lines[-1]) if lines else None
  return found[1] if found else None


def oracle(task: Task) -> Answer:
  """A search for each needed page by its title, the pages, the answer."""
  archive = _archive(task)
  calls = []
  for number in archive.needed:
    calls.append(ToolCall("search", {"words": title(archive.pages[number - 1])}))
    calls.append(ToolCall("read", {"page": number}))
  return (*calls, f"Answer: {task.data['right']}")


ATTACKS: tuple[Answer, ...] = (
  "Answer: 12 million crowns",
  "\n".join(f"Answer: {n}%" for n in range(300)),
  (ToolCall("read", {"page": 0}), ToolCall("read", {"page": -1}), "Answer: 0"),
  (ToolCall("read", {"page": 10**30}), "Answer: 0 crowns"),
  (ToolCall("search", {"words": ""}), ToolCall("search", {"words": "of"}), "Answer: nan"),
)


def build(level: int = 1) -> Domain:
  """Makes the domain; the archive is twice as large with each level above 1."""
  if level < 1:
    raise ValueError(f"level {level} of filings/tools must be 1 or more")
  pages = tree.Gate(tree.EpisodeLeaf("read", grade_read), 1.0)
  answer = tree.Child(1.0, tree.EpisodeLeaf("answer", grade_answer))
  form = tree.Child(1.0, tree.EpisodeLeaf("format", grade_format))
  return Domain(
    name=_name(level),
    family="filings",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=functools.partial(make_task, level=level),
    rewards=tree.general_domain(
      tree.Node("general", (form,)), tree.Node("domain", (answer,), gates=(pages,))
    ),
    passed=lambda rewards: rewards.get("domain/answer") == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    play=Episodic(
      calculator.episode, tools=TOOLS, budget=Budget(turns=16, tool_calls=24, wall_s=300.0)
    ),
  )


DOMAINS = {"filings/tools": build}
