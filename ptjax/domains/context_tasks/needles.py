"""Needles in a haystack: facts put at known depths of a text that has nothing to do with them.

The eight kinds of RULER (section 3.1, table 2). What differs from its code: the queried keys never
occur among the distractors, values are all different, and depths cover the text evenly.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from ptjax.domains.context_tasks import texts
from ptjax.domains.context_tasks.problem import Problem, Room, filled, place, spread_depths

Kind = Literal["words", "numbers", "ids"]

NOISE = "Rain falls on the roof. The clock ticks. Nobody calls. A door opens and shuts again."
_MAKE: dict[Kind, Callable[[random.Random], str]] = {
  "words": texts.key_word,
  "numbers": texts.number,
  "ids": texts.identifier,
}
_NAMES: dict[Kind, tuple[str, str]] = {
  "words": ("secret word", "secret words"),
  "numbers": ("secret number", "secret numbers"),
  "ids": ("secret id", "secret ids"),
}
_LOOK: dict[Kind, str] = {
  "words": r"\b[a-z]+-[a-z]+\b",
  "numbers": r"(?<!\d)\d{7}(?!\d)",
  "ids": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
}
MAX_NEW_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class Needles:
  """A kind of haystack and of needles.

  Attributes:
    haystack: `noise` repeats one line, `essay` is prose, `needles` is made of other needles.
    keys, values: what they look like.
    num_keys: keys with a needle, the queried ones included.
    num_values: values of each key, a needle each.
    num_queries: keys asked for.
  """

  haystack: Literal["noise", "essay", "needles"] = "essay"
  keys: Kind = "words"
  values: Kind = "numbers"
  num_keys: int = 1
  num_values: int = 1
  num_queries: int = 1

  def __post_init__(self):
    if not 1 <= self.num_queries <= self.num_keys or self.num_values < 1:
      raise ValueError(
        f"needles: num_queries {self.num_queries} must be 1 to num_keys {self.num_keys}, "
        f"num_values {self.num_values} at least 1"
      )


def sentence(kind: Kind, key: str, value: str) -> str:
  """One needle."""
  return f"The {_NAMES[kind][0]} of {key} is {value}."


def make(
  task: str, spec: Needles, seed: int, room: Room, depths: Sequence[float] | None = None
) -> Problem:
  """A problem of this kind.

  Args:
    task: its name.
    spec: the kind.
    seed: decides keys, values, haystack and depths.
    room: its length.
    depths: of the needles that hold the answers; None draws them evenly.

  Raises:
    ValueError: `depths` of another number, or a room that cannot be filled.
  """
  rng = random.Random(f"{task}/{seed}")
  taken: set[str] = set()
  keys = texts.distinct(rng, _MAKE[spec.keys], spec.num_keys, taken)
  values = {k: texts.distinct(rng, _MAKE[spec.values], spec.num_values, taken) for k in keys}
  queried = keys[: spec.num_queries]
  answers = [value for key in queried for value in values[key]]
  wanted = [sentence(spec.values, key, value) for key in queried for value in values[key]]
  others = [
    sentence(spec.values, key, value) for key in keys[spec.num_queries :] for value in values[key]
  ]
  if depths is None:
    depths = spread_depths(rng, len(wanted))
  elif len(depths) != len(wanted):
    raise ValueError(f"{task}: {len(depths)} depths for {len(wanted)} needles; give one for each")
  where = (*depths, *(rng.random() for _ in others))
  hay = texts.Growing(_haystack(spec, random.Random(f"{task}/{seed}/hay"), taken))
  joint = " " if spec.haystack == "essay" else "\n"

  def text_of(units: int) -> str:
    return joint.join(place(hay.first(units), (*wanted, *others), where))

  asked, prefix = _question(spec, queried, len(answers))
  one, many = _NAMES[spec.values]
  what = one if len(answers) == 1 else many
  return filled(
    task,
    text_of,
    lambda text: (
      f"The text below hides {'a ' if len(answers) == 1 else ''}{what}. Remember "
      f"{'it' if len(answers) == 1 else 'them'}, for you will be asked.\n{text}\n{asked}"
    ),
    room,
    facts=wanted,
    answers=answers,
    candidates=_LOOK[spec.values],
    max_new_tokens=MAX_NEW_TOKENS,
    prefix=prefix,
  )


def _question(spec: Needles, queried: Sequence[str], num_answers: int) -> tuple[str, str]:
  one, many = _NAMES[spec.values]
  whose = _listed(queried)
  if num_answers == 1:
    return f"What is the {one} of {whose} in the text above?", f"The {one} of {whose} is"
  return f"What are all the {many} of {whose} in the text above?", f"The {many} of {whose} are"


def _listed(words: Sequence[str]) -> str:
  return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _haystack(spec: Needles, rng: random.Random, taken: set[str]) -> Iterator[str]:
  if spec.haystack == "noise":
    return itertools.repeat(NOISE)
  if spec.haystack == "essay":
    return texts.essay(rng)
  return other_needles(spec, rng, frozenset(taken))


def other_needles(spec: Needles, rng: random.Random, taken: frozenset[str]) -> Iterator[str]:
  """Needles that nobody asks for: their keys and values are none of those `taken`."""
  while True:
    key, value = _MAKE[spec.keys](rng), _MAKE[spec.values](rng)
    if key not in taken and value not in taken:
      yield sentence(spec.values, key, value)
