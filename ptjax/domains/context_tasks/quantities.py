"""Numbers in text, with sign and unit: what a numeric answer says, and whether it is right.

An answer counts as its last quantity that has a unit; where none has one, as its last number, read
in the unit that was asked for. So a year that is mentioned on the way is no answer, and millions
are not thousands.
"""

import dataclasses
import re
from fractions import Fraction
from typing import Literal

Kind = Literal["money", "percent", "bare"]

RELATIVE_TOLERANCE = Fraction(1, 200)
"""Of amounts: half a percent, for an answer may be rounded to three digits."""
PERCENT_TOLERANCE = Fraction(1, 10)
"""Of percentages, in points, for an answer may be rounded to one decimal."""

CURRENCY = "crowns"
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_QUANTITY = re.compile(
  r"""
  (?P<open>\()?                                            # accounts write a loss in parentheses
  (?P<sign>(?:(?<![\w.,)])[-\N{MINUS SIGN}]|\b(?:minus|negative|loss\ of)\s+)\s*)?
  (?<![\w.,])
  (?P<number>\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,18})?|\d{1,18}(?:\.\d{1,18})?)
  (?!\d|[.,]\d)
  (?P<close>\))?
  \s*(?P<percent>%|percent\b)?
  (?:(?P<scale>thousand|million|billion)s?\b)?
  \s*(?:of\s+)?(?P<currency>crowns?\b)?
  """,
  re.VERBOSE | re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A number as it was written.

  Attributes:
    value: exact; of money in crowns, of percent in points.
    kind: `bare` where it has no unit.
  """

  value: Fraction
  kind: Kind


def quantities(text: str) -> list[Quantity]:
  """All numbers of a text with their units, in order.

  "(1,250) thousand crowns", "minus 1.25 million" and "-1,250,000 crowns" are the same.
  """
  found = []
  for match in _QUANTITY.finditer(text):
    value = Fraction(match["number"].replace(",", ""))
    if match["sign"] or (match["open"] and match["close"]):
      value = -value
    if match["percent"]:
      found.append(Quantity(value, "percent"))
    elif match["scale"] or match["currency"]:
      scale = _SCALES[match["scale"].lower()] if match["scale"] else 1
      found.append(Quantity(value * scale, "money"))
    else:
      found.append(Quantity(value, "bare"))
  return found


def agrees(response: str, wanted: str) -> bool:
  """Whether the first line that holds a number gives the wanted quantity.

  Args:
    response: what was answered.
    wanted: one quantity with its unit, as "-1.25 million crowns", which is also the unit that a
      bare number is read in.

  Raises:
    ValueError: `wanted` is not one quantity with a unit.
  """
  target = quantities(wanted)
  if len(target) != 1 or target[0].kind == "bare":
    raise ValueError(f"{wanted!r} must be one number with its unit")
  said = next((found for line in response.splitlines() if (found := quantities(line))), [])
  if not said:
    return False
  with_unit = [q for q in said if q.kind != "bare"]
  answer, want = (with_unit or said)[-1], target[0]
  value = answer.value
  if answer.kind == "bare":
    scale = next((size for word, size in _SCALES.items() if word in wanted), 1)
    value *= scale if want.kind == "money" else 1
  elif answer.kind != want.kind:
    return False
  room = PERCENT_TOLERANCE if want.kind == "percent" else RELATIVE_TOLERANCE * abs(want.value)
  return abs(value - want.value) <= room
