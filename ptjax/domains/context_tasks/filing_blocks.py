"""Annual reports of firms that do not exist, in blocks: tables, footnotes, notes, prose.

Every block names its firm and its report, so that it can stand anywhere. Amounts are in thousands
of crowns unless a block says otherwise, as some do.
"""

import dataclasses
import random
from collections.abc import Sequence

from ptjax.domains.context_tasks import texts

_GOODS = ("Lamps", "Clocks", "Boats", "Bridges", "Pianos", "Maps", "Bicycles", "Cameras", "Engines")
_PLACES = ("North", "South", "East", "West", "Coastal", "Island", "Mountain", "River")
_FORMS = ("Works", "Holding", "Partners", "Group", "Industries")


@dataclasses.dataclass(frozen=True)
class Filing:
  """The figures of one annual report.

  Attributes:
    firm: its name.
    years: three, ascending; the last is that of the report.
    segments: four names.
    revenue: thousands of crowns by (segment, year), as first published.
    restated: the same for the one figure that a note corrects.
    result: thousands of crowns by year; a loss is negative.
    property: millions of crowns by year, from selling property, no part of the revenue.
    shares: millions by year.
  """

  firm: str
  years: tuple[int, int, int]
  segments: tuple[str, ...]
  revenue: dict[tuple[str, int], int]
  restated: dict[tuple[str, int], int]
  result: dict[int, int]
  property: dict[int, int]
  shares: dict[int, int]

  def settled(self, segment: str, year: int) -> int:
    """Revenue in thousands of crowns, restated where it was."""
    return self.restated.get((segment, year), self.revenue[segment, year])


def make_filing(rng: random.Random, firm: str, last_year: int) -> Filing:
  """Random figures; the restated one differs by 10 to 30%."""
  years = (last_year - 2, last_year - 1, last_year)
  goods = rng.sample(_GOODS, 2)
  segments = tuple(f"{place} {g}" for g in goods for place in rng.sample(_PLACES, 2))
  revenue = {(s, y): rng.randint(10_000, 99_999) for s in segments for y in years}
  segment, year = rng.choice(segments), rng.choice(years[1:])
  old = revenue[segment, year]
  factor = 1 + rng.choice((-1, 1)) * rng.uniform(0.1, 0.3)
  return Filing(
    firm,
    years,
    segments,
    revenue,
    {(segment, year): round(old * factor)},
    {y: rng.choice((-1, 1)) * rng.randint(60_000, 900_000) for y in years},
    {y: rng.randint(3, 40) for y in years},
    {y: rng.randint(5, 60) for y in years},
  )


def firm_name(rng: random.Random) -> str:
  return f"{texts.invented_word(rng).capitalize()} {rng.choice(_FORMS)}"


def like_named(rng: random.Random, firm: str) -> str:
  """A firm whose name differs in the last word alone."""
  first, _, form = firm.partition(" ")
  return f"{first} {rng.choice([f for f in _FORMS if f != form])}"


def amount(thousands: int) -> str:
  """As accounts write it: a loss in parentheses."""
  return f"({-thousands:,})" if thousands < 0 else f"{thousands:,}"


def revenue_table(f: Filing) -> str:
  """Revenue by segment and year, as first published, with a footnote."""
  (segment, _), = f.restated  # fmt: skip
  rows = [
    f"| {s}{' (a)' if s == segment else ''} | "
    + " | ".join(f"{f.revenue[s, y]:,}" for y in f.years)
    + " |"
    for s in f.segments
  ]
  return "\n".join((
    _title(f, "Revenue by segment, in thousands of crowns"), _head(f, "Segment"), *rows,
    "(a) See the note on restatements.",
  ))  # fmt: skip


def result_table(f: Filing) -> str:
  """Net result by year."""
  row = " | ".join(amount(f.result[y]) for y in f.years)
  return "\n".join((
    _title(f, "Result, in thousands of crowns"), _head(f, "Item"), f"| Net result | {row} |",
    "Amounts in parentheses are losses.",
  ))  # fmt: skip


def restatement_note(f: Filing) -> str:
  (segment, year), = f.restated  # fmt: skip
  return (
    f"{_title(f, 'Note on restatements')}\nAn error in the accounts of {segment} was found after "
    f"the table of revenue had been printed. Its revenue in {year} was "
    f"{f.restated[segment, year]:,} thousand crowns, and not {f.revenue[segment, year]:,} thousand "
    f"as that table says. No other figure changes."
  )


def property_note(f: Filing) -> str:
  sales = ", ".join(f"{f.property[y]} in {y}" for y in f.years)
  return (
    f"{_title(f, 'Note on property')}\nThe sale of property brought, in millions of crowns: "
    f"{sales}. This is no part of the revenue of any segment."
  )


def shares_note(f: Filing) -> str:
  shares = ", ".join(f"{f.shares[y]} million in {y}" for y in f.years)
  return f"{_title(f, 'Note on capital')}\nThe number of shares was {shares}."


def prose(rng: random.Random, f: Filing) -> str:
  """A paragraph without figures."""
  sentences = " ".join(next(texts.essay(rng)) for _ in range(rng.randint(2, 4)))
  return f"{_title(f, 'From the management')}\n{sentences}"


TABLES_AND_NOTES = (revenue_table, result_table, restatement_note, property_note, shares_note)


def blocks(rng: random.Random, f: Filing) -> list[str]:
  """The whole report in an order of its own."""
  found = [make(f) for make in TABLES_AND_NOTES]
  found += [prose(rng, f) for _ in range(3)]
  rng.shuffle(found)
  return found


def _title(f: Filing, what: str) -> str:
  return f"{f.firm}, annual report {f.years[-1]}. {what}"


def _head(f: Filing, first: str) -> str:
  columns: Sequence[str] = (first, *map(str, f.years))
  return f"| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |"
