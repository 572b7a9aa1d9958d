"""Filings: numeric answers are graded with sign, unit and tolerance; questions can be solved."""

import re
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import pytest

from ptjax.domains.context_tasks import filings, problem
from ptjax.domains.context_tasks.problem import Room
from ptjax.domains.context_tasks.quantities import Quantity, agrees, quantities

COUNTED = re.compile(r"\w{1,4}|[^\w\s]")


def count(prompt, prefix):
  return sum(1 for text in (prompt, prefix) for _ in COUNTED.finditer(text))


def made(seed, tokens=3000, **more):
  return filings.make("filings", seed, Room(tokens, count), **more)


@pytest.mark.parametrize(
  ("text", "value", "kind"),
  [
    ("12.5 million crowns", 12_500_000, "money"),
    ("12,500 thousand", 12_500_000, "money"),
    ("(12,500) thousand crowns", -12_500_000, "money"),
    ("-3 crowns", -3, "money"),
    ("- 3 crowns", -3, "money"),
    ("minus 3 crowns", -3, "money"),
    ("a loss of 3.25 crowns", Fraction(-13, 4), "money"),
    ("\N{MINUS SIGN}4.5%", Fraction(-9, 2), "percent"),
    ("4.5 percent", Fraction(9, 2), "percent"),
    ("1,234,567", 1_234_567, "bare"),
    ("(see 7", 7, "bare"),
    ("17.", 17, "bare"),
  ],
)
def test_reads_a_quantity(text, value, kind):
  assert quantities(text) == [Quantity(Fraction(value), kind)]


@pytest.mark.parametrize("text", ["", "no number", "1" * 5000, "1,23,4", "abc12"])
def test_reads_none(text):
  assert quantities(text) == []


@hypothesis.given(st.integers(-(10**8), 10**8), st.sampled_from(["thousand", "million", "billion"]))
@hypothesis.settings(deadline=None, max_examples=80)
def test_written_in_any_way_it_is_the_same(number, scale):
  size = {"thousand": 10**3, "million": 10**6, "billion": 10**9}[scale]
  minus = "-" if number < 0 else ""
  for text in (
    f"{minus}{abs(number)} {scale}",
    f"{minus}{abs(number):,} {scale} crowns",
    f"It came to {minus}{abs(number) * size} crowns.",
  ):
    assert quantities(text) == [Quantity(Fraction(number * size), "money")]


@pytest.mark.parametrize(
  ("response", "wanted", "right"),
  [
    ("12.5 million crowns", "12.5 million crowns", True),
    ("12,500 thousand crowns", "12.5 million crowns", True),
    ("12,500,000 crowns", "12.5 million crowns", True),
    (" 12.5", "12.5 million crowns", True),  # in the unit that was asked for
    ("In 2011 it was 12.5 million.", "12.5 million crowns", True),
    ("12.5 million in 2011", "12.5 million crowns", True),
    ("12.55", "12.5 million crowns", True),  # 0.4%
    ("12.6", "12.5 million crowns", False),  # 0.8%
    ("12.5 thousand crowns", "12.5 million crowns", False),
    ("12,500", "12.5 million crowns", False),
    ("-12.5", "12.5 million crowns", False),
    ("(12.5) million", "-12.5 million crowns", True),
    ("12.5%", "12.5 million crowns", False),
    ("-4.1%", "-4.123%", True),
    ("-4.1", "-4.123%", True),
    ("-4.3%", "-4.123%", False),
    ("4.1%", "-4.123%", False),
    ("10 million and 2.5 million, together 12.5 million", "12.5 million crowns", True),
    ("12.5 million\nor 13 million", "12.5 million crowns", True),  # what comes after the answer
    ("I do not know\n12.5 million", "12.5 million crowns", True),
    ("", "12.5 million crowns", False),
    ("unknown", "12.5 million crowns", False),
  ],
)
def test_agrees(response, wanted, right):
  assert agrees(response, wanted) is right


def test_a_wanted_answer_has_a_unit():
  with pytest.raises(ValueError, match="'12' must be one number with its unit"):
    agrees("12", "12")


def cells_of(text, firm, report, segment):
  """A row of the firm's table of revenue, by year."""
  heading = rf"{firm}, annual report {report}\. Revenue by segment[^\n]*\n"
  years = re.search(rf"{heading}\| Segment \| ([^\n]*) \|", text)[1].split(" | ")
  row = re.search(rf"{heading}(?:\|[^\n]*\n)*\| {segment}(?: \(a\))? \| ([^\n]*) \|", text)[1]
  numbers = [int(cell.replace(",", "")) for cell in row.split(" | ")]
  return dict(zip(map(int, years), numbers, strict=True))


def note(text, firm, report, what):
  return re.search(rf"{firm}, annual report {report}\. Note on {what}\n([^\n]*)", text)[1]


def corrected(text, firm, report):
  found = re.search(r"in (\d+) was ([\d,]+) thousand", note(text, firm, report, "restatements"))
  return int(found[1]), int(found[2].replace(",", ""))


def solve(prompt):
  """By pattern, from the text alone; the kind of question, and its answer with the unit."""
  text, _, question = prompt.rpartition("\n\n")
  report = re.search(r"annual report (\d+)", question)[1]
  if found := re.search(r"of the segment (.*) of (.*) in (\d+), in millions", question):
    year, value = corrected(text, found[2], report)
    assert year == int(found[3])
    return "restated", Fraction(value, 1000), "million"
  if found := re.search(r"of the segment (.*) of (.*) change from (\d+) to (\d+),", question):
    before = cells_of(text, found[2], report, found[1])[int(found[3])]
    _, after = corrected(text, found[2], report)
    return "growth", 100 * (Fraction(after, before) - 1), "%"
  if found := re.search(r"of the segments (.*) and (.*) of (.*) in (\d+) together", question):
    year = int(found[4])
    rows = [cells_of(text, found[3], report, found[i])[year] for i in (1, 2)]
    sale = re.search(rf"(\d+) in {year}", note(text, found[3], report, "property"))[1]
    return "total", Fraction(sum(rows), 1000) + int(sale), "million"
  found = re.search(r"net result of (.*) per share in (\d+),", question)
  heading = rf"{found[1]}, annual report {report}\. Result[^\n]*\n\| Item \| ([^\n]*) \|\n[^\n]*\n"
  years, row = re.search(rf"{heading}\| Net result \| ([^\n]*) \|", text).groups()
  cell = row.split(" | ")[years.split(" | ").index(found[2])]
  value = int(re.sub(r"\D", "", cell)) * (-1 if cell.startswith("(") else 1)
  shares = re.search(rf"(\d+) million in {found[2]}", note(text, found[1], report, "capital"))[1]
  return "per_share", Fraction(value, 1000 * int(shares)), "crowns"


def test_every_kind_of_question_is_answered_by_the_text():
  kinds = set()
  for seed in range(40):
    one = made(seed)
    kind, value, unit = solve(one.prompt)
    kinds.add(kind)
    assert problem.score(one, f"{float(value):.3f} {unit}") == 1.0, (seed, kind)
    assert problem.score(one, f"{float(-value):.3f} {unit}") == 0.0
    assert problem.score(one, one.answers[0]) == 1.0
  assert kinds == set(filings.KINDS)


def test_the_figure_that_was_corrected_is_a_wrong_answer():
  wrong = 0
  for seed in range(40):
    one = made(seed)
    if "in millions of crowns, after restatement" in one.prompt:
      old = re.search(r"and not ([\d,]+) thousand as", one.facts[1])[1]
      assert problem.score(one, f"{old} thousand crowns") == 0.0
      wrong += 1
  assert wrong > 3


@pytest.mark.parametrize("tokens", [5000, 60_000])
def test_fills_its_room_and_places_its_facts(tokens):
  one = made(1, tokens, depths=(0.8, 0.2))
  assert tokens - max(128, tokens // 50) <= count(one.prompt, one.prefix) + 48 <= tokens
  assert one.depths == pytest.approx((0.8, 0.2), abs=0.06)
  assert one == made(1, tokens, depths=(0.8, 0.2))


def test_clear_errors():
  with pytest.raises(ValueError, match="1 depths for 2 blocks"):
    made(0, depths=(0.5,))
  with pytest.raises(ValueError, match="its shortest text takes"):
    made(0, tokens=800)
