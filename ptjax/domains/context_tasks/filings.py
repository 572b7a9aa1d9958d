"""Questions over the annual reports of many firms: figures to be joined across tables and notes.

In the manner of questions over financial filings (FinanceBench, P. Islam et al., 2023; DocFinQA,
V. Reddy et al., 2024), with nothing taken from them. What makes it hard: the two blocks that an
answer needs stand apart, notes correct tables, units differ between blocks, a firm has reports of
other years and a neighbour of nearly its name, and a loss has to stay one.
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from ptjax.domains.context_tasks import filing_blocks, texts
from ptjax.domains.context_tasks.filing_blocks import Filing
from ptjax.domains.context_tasks.problem import Problem, Room, filled, place, spread_depths

MAX_NEW_TOKENS = 48
_LAST_YEARS = range(1990, 2020)


@dataclasses.dataclass(frozen=True)
class Asked:
  """A question, the blocks that answer it, and the answer with its unit."""

  question: str
  needed: tuple[str, ...]
  answer: str


def _money(value: Fraction, unit: str = "million crowns") -> str:
  return f"{float(value):.4f} {unit}"


def restated(rng: random.Random, f: Filing) -> Asked:
  """A figure that a note corrects."""
  del rng
  (segment, year), = f.restated  # fmt: skip
  return Asked(
    f"What was the revenue of the segment {segment} of {f.firm} in {year}, in millions of crowns, "
    f"after restatement in its annual report {f.years[-1]}?",
    (filing_blocks.revenue_table(f), filing_blocks.restatement_note(f)),
    _money(Fraction(f.settled(segment, year), 1000)),
  )


def growth(rng: random.Random, f: Filing) -> Asked:
  """The change between a figure of the table and one that a note corrects, in percent."""
  del rng
  (segment, year), = f.restated  # fmt: skip
  before = f.years[f.years.index(year) - 1]
  change = Fraction(f.settled(segment, year), f.settled(segment, before)) - 1
  return Asked(
    f"By how many percent did the revenue of the segment {segment} of {f.firm} change from "
    f"{before} to {year}, after restatement in its annual report {f.years[-1]}? A decrease is "
    f"negative.",
    (filing_blocks.revenue_table(f), filing_blocks.restatement_note(f)),
    f"{float(100 * change):.3f}%",
  )


def total(rng: random.Random, f: Filing) -> Asked:
  """Two figures in thousands from a table, and one in millions from a note."""
  year = f.years[0]  # which no note restates
  pair = sorted(rng.sample(f.segments, 2))
  revenue = sum(f.revenue[segment, year] for segment in pair)
  return Asked(
    f"What is the revenue of the segments {pair[0]} and {pair[1]} of {f.firm} in {year} together "
    f"with what its sale of property brought that year, in millions of crowns, by its annual "
    f"report {f.years[-1]}?",
    (filing_blocks.revenue_table(f), filing_blocks.property_note(f)),
    _money(Fraction(revenue, 1000) + f.property[year]),
  )


def per_share(rng: random.Random, f: Filing) -> Asked:
  """Thousands of crowns from a table, perhaps a loss, over millions of shares from a note."""
  year = rng.choice(f.years)
  return Asked(
    f"What was the net result of {f.firm} per share in {year}, in crowns, by its annual report "
    f"{f.years[-1]}? A loss is negative.",
    (filing_blocks.result_table(f), filing_blocks.shares_note(f)),
    _money(Fraction(f.result[year], 1000 * f.shares[year]), "crowns"),
  )


KINDS = {"restated": restated, "growth": growth, "total": total, "per_share": per_share}


def ask(rng: random.Random) -> tuple[Filing, Asked]:
  """A report, and a question about it of a kind that is drawn."""
  kind = rng.choice(sorted(KINDS))
  filing = filing_blocks.make_filing(rng, filing_blocks.firm_name(rng), rng.choice(_LAST_YEARS))
  return filing, KINDS[kind](rng, filing)


def make(task: str, seed: int, room: Room, depths: Sequence[float] | None = None) -> Problem:
  """A question of a kind that the seed chooses.

  Args:
    task: its name.
    seed: decides kind, figures, filling and depths.
    room: its length, from about 1,500 tokens up.
    depths: of the two needed blocks; None draws them evenly.

  Raises:
    ValueError: `depths` of another number, or a room that cannot be filled.
  """
  rng = random.Random(f"{task}/{seed}")
  filing, asked = ask(rng)
  others = [b for b in filing_blocks.blocks(rng, filing) if b not in asked.needed]
  others += confusing(rng, filing)
  if depths is None:
    depths = spread_depths(rng, len(asked.needed))
  elif len(depths) != len(asked.needed):
    raise ValueError(f"{task}: {len(depths)} depths for {len(asked.needed)} blocks; one for each")
  where = (*depths, *(rng.random() for _ in others))
  filler = texts.Growing(archive(random.Random(f"{task}/{seed}/archive"), filing.firm))

  def text_of(units: int) -> str:
    return "\n\n".join(place(filler.first(units), (*asked.needed, *others), where))

  return filled(
    task,
    text_of,
    lambda text: (
      f"Below are parts of the annual reports of several firms, in no order.\n\n{text}\n\n"
      f"Question: {asked.question} Give the number with its unit."
    ),
    room,
    facts=asked.needed,
    answers=[asked.answer],
    candidates="",
    max_new_tokens=MAX_NEW_TOKENS,
    prefix="Answer:",
    match="number",
    least=0,
  )


def confusing(rng: random.Random, f: Filing) -> list[str]:
  """Tables of a like-named firm with the same segments and years, and of a later report."""
  other = filing_blocks.make_filing(rng, filing_blocks.like_named(rng, f.firm), f.years[-1])
  own = {(s, y): rng.randint(10_000, 99_999) for s in f.segments for y in f.years}
  (segment, year), = f.restated  # fmt: skip
  twin = dataclasses.replace(
    other, segments=f.segments, revenue=own, restated={(segment, year): rng.randint(10_000, 99_999)}
  )
  later = filing_blocks.make_filing(rng, f.firm, f.years[-1] + 3)
  return [
    filing_blocks.revenue_table(twin),
    filing_blocks.restatement_note(twin),
    filing_blocks.revenue_table(later),
  ]


def archive(rng: random.Random, firm: str) -> Iterator[str]:
  """Blocks of other firms' reports, without end."""
  while True:
    name = filing_blocks.firm_name(rng)
    if not name.startswith(firm.partition(" ")[0]):
      yield from filing_blocks.blocks(
        rng, filing_blocks.make_filing(rng, name, rng.choice(_LAST_YEARS))
      )
