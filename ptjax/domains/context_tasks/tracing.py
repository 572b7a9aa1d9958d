"""Variable tracking: names that are assigned from one another, hidden in noise (RULER, 3.2)."""

import random
import string
from collections.abc import Sequence

from ptjax.domains.context_tasks import needles, texts
from ptjax.domains.context_tasks.problem import Problem, Room, filled, place, spread_depths

HOPS = 4
MAX_NEW_TOKENS = 30


def make(task: str, seed: int, room: Room, depths: Sequence[float] | None = None) -> Problem:
  """One chain of HOPS assignments after the first, in order; a short solved example before it.

  Args:
    task: its name.
    seed: decides names, value and depths.
    room: its length.
    depths: of the HOPS + 1 statements, ascending; None draws them evenly.

  Raises:
    ValueError: `depths` of another number or out of order, or a room that cannot be filled.
  """
  rng = random.Random(f"{task}/{seed}")
  if depths is None:
    depths = sorted(spread_depths(rng, HOPS + 1))
  elif len(depths) != HOPS + 1 or list(depths) != sorted(depths):
    raise ValueError(f"{task}: depths {depths} must be {HOPS + 1} in ascending order")
  taken: set[str] = set()
  shown_value, shown_names, shown = _chain(rng, taken)
  example = "\n".join(place([needles.NOISE] * 5, shown, [i / HOPS for i in range(HOPS + 1)]))
  solved = f"{_ask(example, shown_value)}\n{_prefix(shown_value)} {' '.join(shown_names)}"
  value, names, statements = _chain(rng, taken)

  def text_of(units: int) -> str:
    return "\n".join(place([needles.NOISE] * units, statements, depths))

  return filled(
    task,
    text_of,
    lambda text: f"{solved}\n\n{_ask(text, value)}",
    room,
    facts=statements,
    answers=names,
    candidates=r"\b[A-Z]{5}\b",
    max_new_tokens=MAX_NEW_TOKENS,
    prefix=_prefix(value),
  )


def _chain(rng: random.Random, taken: set[str]) -> tuple[str, list[str], list[str]]:
  """Value, names, statements."""
  names = texts.distinct(rng, _name, HOPS + 1, taken)
  (value,) = texts.distinct(rng, lambda r: str(r.randint(10_000, 99_999)), 1, taken)
  sources = [value, *(f"VAR {name}" for name in names)]
  pairs = zip(names, sources[:-1], strict=True)
  return value, names, [f"VAR {name} = {source};" for name, source in pairs]


def _name(rng: random.Random) -> str:
  return "".join(rng.choices(string.ascii_uppercase, k=5))


def _ask(text: str, value: str) -> str:
  return (
    f"Follow the assignments of variables hidden in the text below.\n\n{text}\n"
    f"Question: which variables end up with the value {value} in the text above?"
  )


def _prefix(value: str) -> str:
  return f"Answer: the {HOPS + 1} variables with the value {value} are"
