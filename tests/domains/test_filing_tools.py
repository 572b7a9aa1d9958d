"""Questions over an archive that only tools open."""

import asyncio
import math

import pytest

from ptjax.domains import admission, catalog, filing_tools
from ptjax.domains.context_tasks import quantities
from ptjax.domains.domain import grade_answer, play_answer
from ptjax.domains.filing_tools import archive_of, search_pages, title
from ptjax.envs.environment import Services
from ptjax.envs.tools import ToolCall

DOMAIN = filing_tools.build()
TASK = DOMAIN.make_task(0, "train")


def graded(answer, task=TASK):
  return asyncio.run(grade_answer(DOMAIN, task, answer, Services()))


def archive(task=TASK):
  return archive_of(task.seed, task.data["asked"], task.data["level"])


def test_admitted():
  seen = asyncio.run(admission.examine(catalog.builder("filings/tools")(), range(5), Services()))
  assert seen.findings == ()
  assert seen.guessed == 0


@pytest.mark.parametrize("level", [1, 2, 4])
def test_a_level_doubles_the_archive(level):
  domain = catalog.builder("filings/tools" if level == 1 else f"filings/tools@{level}")()
  pages = archive(domain.make_task(3, "train")).pages
  size = sum(map(len, pages))
  assert size == pytest.approx(filing_tools.SMALLEST * 2 ** (level - 1), rel=0.1)
  assert len(set(pages)) == len(pages)


def test_a_million_tokens_of_pages():
  pages = archive_of(0, TASK.data["asked"], 9).pages
  assert sum(map(len, pages)) >= 4 * 2**20


def test_the_right_number_without_its_pages_earns_nothing():
  *calls, last = DOMAIN.oracle(TASK)
  assert graded((*calls, last)).passed
  assert graded(last).rewards["domain"] == 0
  half = graded((*calls[:2], last))
  assert (half.rewards["domain/read"], half.rewards["domain"]) == (0.5, 0)


def test_what_is_read_is_shown_once_and_as_it_is():
  episode = asyncio.run(play_answer(DOMAIN, TASK, DOMAIN.oracle(TASK), Services()))
  pages, needed = archive().pages, archive().needed
  assert [episode.observations[i] for i in (1, 3)] == [pages[n - 1] for n in needed]
  assert f"page {needed[0]}: {title(pages[needed[0] - 1])}" in episode.observations[0]


@pytest.mark.parametrize("seed", range(6))
def test_another_quantity_or_unit_is_wrong(seed):
  task = DOMAIN.make_task(seed, "train")
  *calls, last = DOMAIN.oracle(task)
  (right,) = quantities.quantities(task.data["right"])
  sound = f"Answer: {task.data['right']}"
  assert last == sound
  number = task.data["right"].partition(" ")[0].rstrip("%")
  assert graded((*calls, sound), task).passed
  for wrong in (1.02 * float(number) + math.copysign(0.2, float(number)), -float(number)):
    changed = sound.replace(number, f"{wrong:.4f}")
    assert not graded((*calls, changed), task).passed
  if right.kind == "money":
    assert not graded((*calls, f"Answer: {number} thousand crowns"), task).passed
    assert not graded((*calls, f"Answer: {number}%"), task).passed


def test_searching():
  pages = ["Alpha note\nthe revenue", "Beta note\nthe result", *(["Gamma\nrevenue"] * 12)]
  assert search_pages(pages, "NOTE revenue") == "page 1: Alpha note"
  assert search_pages(pages, "delta") == "no page holds all of these words"
  assert search_pages(pages, " ") == "error: no words to search for"
  many = search_pages(pages, "revenue").splitlines()
  assert (len(many), many[-1]) == (11, "and 3 more; add words")


def test_pages_that_are_not_there():
  last = len(archive().pages)
  calls = tuple(ToolCall("read", {"page": n}) for n in (0, last + 1))
  episode = asyncio.run(play_answer(DOMAIN, TASK, (*calls, "Answer: 1"), Services()))
  assert episode.observations[0] == f"error: there is no page 0; pages are 1 to {last}"
  assert episode.observations[1].startswith(f"error: there is no page {last + 1}")


def test_a_level_below_one():
  with pytest.raises(ValueError, match="level 0 of filings/tools must be 1 or more"):
    filing_tools.build(level=0)
