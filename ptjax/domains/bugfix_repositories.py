"""Small repositories of two files, right as they stand, and bugs to put into them.

`@k` stands for a constant. A bug is a replacement of one text, which is in its file once; it leaves
no loop without an end, since the buggy code runs on the host to find the tests that it fails.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bug:
  """`right` in `file` becomes `wrong`."""

  file: str
  right: str
  wrong: str


@dataclasses.dataclass(frozen=True)
class Repository:
  """One program.

  Attributes:
    name: unique.
    purpose: of its entry, a sentence.
    files: text by name; a file imports only from those before it.
    entry: the function of the last file that tests call.
    arguments: draws the arguments of a test.
    constants: choices for `@k`.
    bugs: each breaks some tests.
  """

  name: str
  purpose: str
  files: Mapping[str, str]
  entry: str
  arguments: Callable[[random.Random], list[Any]]
  constants: range
  bugs: tuple[Bug, ...]


CART = Repository(
  name="cart",
  purpose="cart_total(items) is the price of [price, count] pairs, with @k percent off, rounded "
  "down, where they cost 100 or more.",
  files={
    "prices.py": """\
def line_total(price, count):
  return price * count

def discounted(total, percent):
  return total * (100 - percent) // 100
""",
    "cart.py": """\
from prices import discounted, line_total

def cart_total(items):
  total = 0
  for price, count in items:
    total += line_total(price, count)
  if total >= 100:
    total = discounted(total, @k)
  return total
""",
  },
  entry="cart_total",
  arguments=lambda rng: [
    [[rng.randint(1, 40), rng.randint(1, 5)] for _ in range(rng.randint(1, 4))]
  ],
  constants=range(3, 30),
  bugs=(
    Bug("prices.py", "price * count", "price + count"),
    Bug("prices.py", "(100 - percent)", "percent"),
    Bug("cart.py", "total += line", "total = line"),
    Bug("cart.py", ">= 100", "<= 100"),
    Bug("cart.py", "total = discounted(total, @k)", "discounted(total, @k)"),
  ),
)

DAYS = Repository(
  name="days",
  purpose="day_number(year, month, day) is the number of the day in its year, plus @k.",
  files={
    "months.py": """\
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

def is_leap(year):
  return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)

def month_length(year, month):
  if month == 2 and is_leap(year):
    return 29
  return LENGTHS[month - 1]
""",
    "days.py": """\
from months import month_length

def day_number(year, month, day):
  passed = sum(month_length(year, m) for m in range(1, month))
  return passed + day + @k
""",
  },
  entry="day_number",
  arguments=lambda rng: [
    rng.choice((1900, 2000, 2023, 2024, 2100)), rng.randint(1, 12), rng.randint(1, 28),
  ],
  constants=range(1, 40),
  bugs=(
    Bug("months.py", "year % 100 != 0 or ", ""),
    Bug("months.py", "year % 4 == 0 and ", "year % 4 == 0 or "),
    Bug("months.py", "LENGTHS[month - 1]", "LENGTHS[month % 12]"),
    Bug("days.py", "range(1, month)", "range(1, month + 1)"),
    Bug("days.py", "range(1, month)", "range(2, month)"),
  ),
)  # fmt: skip

INTERVALS = Repository(
  name="intervals",
  purpose="covered(intervals) is how much of the line [start, end] pairs cover together, times @k.",
  files={
    "merging.py": """\
def merged(intervals):
  result = []
  for start, end in sorted(intervals):
    if result and start <= result[-1][1]:
      result[-1][1] = max(result[-1][1], end)
    else:
      result.append([start, end])
  return result
""",
    "coverage.py": """\
from merging import merged

def covered(intervals):
  total = 0
  for start, end in merged(intervals):
    total += end - start
  return total * @k
""",
  },
  entry="covered",
  arguments=lambda rng: [
    [[s, s + rng.randint(1, 9)] for s in (rng.randint(0, 25) for _ in range(rng.randint(2, 5)))]
  ],
  constants=range(2, 40),
  bugs=(
    Bug("merging.py", "sorted(intervals)", "intervals"),
    Bug("merging.py", "max(result[-1][1], end)", "end"),
    Bug("merging.py", "result[-1][1] = max", "result[-1][0] = max"),
    Bug("merging.py", "start <= result", "start >= result"),
    Bug("coverage.py", "total += end", "total = end"),
  ),
)

ROMAN = Repository(
  name="roman",
  purpose="add_roman(a, b) is the sum of two Roman numerals and @k, as a Roman numeral.",
  files={
    "numerals.py": """\
VALUES = [("C", 100), ("XC", 90), ("L", 50), ("XL", 40), ("X", 10),
          ("IX", 9), ("V", 5), ("IV", 4), ("I", 1)]

def to_number(text):
  digits = [dict(VALUES)[c] for c in text]
  total = 0
  for i, digit in enumerate(digits):
    smaller = i + 1 < len(digits) and digit < digits[i + 1]
    total += -digit if smaller else digit
  return total

def to_roman(number):
  text = ""
  for letters, value in VALUES:
    text += letters * (number // value)
    number %= value
  return text
""",
    "adding.py": """\
from numerals import to_number, to_roman

def add_roman(a, b):
  return to_roman(to_number(a) + to_number(b) + @k)
""",
  },
  entry="add_roman",
  arguments=lambda rng: [rng.choice(_ROMANS), rng.choice(_ROMANS)],
  constants=range(1, 40),
  bugs=(
    Bug("numerals.py", "digit < digits[i + 1]", "digit > digits[i + 1]"),
    Bug("numerals.py", "-digit if smaller else digit", "digit"),
    Bug("numerals.py", '("IV", 4), ', ""),
    Bug("numerals.py", "number %= value", "number %= value + 1"),
    Bug("adding.py", "to_number(b)", "to_number(a)"),
  ),
)
_ROMANS = (
  *("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XIV", "XIX", "XXIV"),
  *("XXIX", "XL", "XLIV", "L", "LX", "XC"),
)

WRAP = Repository(
  name="wrap",
  purpose="page(text) is the list of lines of at most @k characters, each as long as it can be, "
  "behind its number, as in '1: first line'.",
  files={
    "wrapping.py": """\
def wrapped(words, width):
  lines = []
  line = ""
  for word in words:
    longer = line + " " + word if line else word
    if len(longer) <= width:
      line = longer
    else:
      lines.append(line)
      line = word
  if line:
    lines.append(line)
  return lines
""",
    "pages.py": """\
from wrapping import wrapped

def page(text):
  lines = wrapped(text.split(), @k)
  return [f"{i}: {line}" for i, line in enumerate(lines, start=1)]
""",
  },
  entry="page",
  arguments=lambda rng: [
    " ".join(rng.choice(_WORDS) for _ in range(rng.randint(3, 9)))
  ],
  constants=range(9, 22),
  bugs=(
    Bug("wrapping.py", "len(longer) <= width", "len(line) <= width"),
    Bug("wrapping.py", "len(longer) <= width", "len(longer) < width"),
    Bug("wrapping.py", "      line = word\n", '      line = ""\n'),
    Bug("wrapping.py", "  if line:\n    lines.append(line)\n", ""),
    Bug("pages.py", ", start=1", ""),
  ),
)  # fmt: skip
_WORDS = ("a", "of", "the", "pear", "stone", "violet", "harbour", "lanterns")

REPOSITORIES = (CART, DAYS, INTERVALS, ROMAN, WRAP)
