"""Words to be counted: the most common of a list, the most frequent of a text (RULER, 3.3)."""

import math
import random
import string
from collections.abc import Sequence

from ptjax.domains.context_tasks import texts
from ptjax.domains.context_tasks.problem import Problem, Room, filled

COMMON = 10
LONG = 4096
"""Below so many tokens, common words occur 6 times and others once, else 30 times and 3 times."""

_FREQUENT = 3
_POWER = 2.0
_LEAST_CODED = 200  # from here on the counts of the first four ranks are all different


def make_common(task: str, seed: int, room: Room, depths: Sequence[float] | None = None) -> Problem:
  """Which ten words of a numbered list occur most often; a short solved list before it.

  Raises:
    ValueError: `depths`, for the words are everywhere; or a room that cannot be filled.
  """
  _refuse_depths(task, depths)
  rng = random.Random(f"{task}/{seed}")
  often, seldom, shown_often, shown_seldom = (30, 3, 10, 3) if room.tokens >= LONG else (6, 1, 3, 1)
  taken: set[str] = set()
  shown = _pool(rng, 20 + COMMON, taken)
  solved = _ask_common(_numbered(rng, shown[:COMMON], shown_often, shown[COMMON:], shown_seldom))
  common = _pool(rng, COMMON, taken)
  others = texts.Growing(iter_words(random.Random(f"{task}/{seed}/others"), taken))

  def text_of(units: int) -> str:
    order = random.Random(f"{task}/{seed}/order")
    return _numbered(order, common, often, others.first(units), seldom)

  return filled(
    task,
    text_of,
    lambda text: f"{solved} {_list(shown[:COMMON])}\n\n{_ask_common(text)}",
    room,
    facts=(),
    answers=common,
    candidates=r"\b[a-z]+\b",
    max_new_tokens=120,
  )


def make_frequent(
  task: str, seed: int, room: Room, depths: Sequence[float] | None = None
) -> Problem:
  """Which three coded words occur most often, where the k-th occurs in proportion to k^-2.

  The most frequent of all is a row of dots, which does not count.

  Raises:
    ValueError: `depths`, for the words are everywhere; or a room that cannot be filled.
  """
  _refuse_depths(task, depths)
  rng = random.Random(f"{task}/{seed}")
  coded = ["...", *texts.distinct(rng, _coded, max(room.tokens // 50, 8), set())]

  def text_of(units: int) -> str:
    total = units / (math.pi**2 / 6)  # the sum of all k^-2
    counts = [int(total * k**-_POWER) for k in range(1, len(coded) + 1)]
    text = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
    random.Random(f"{task}/{seed}/order").shuffle(text)
    return " ".join(text)

  return filled(
    task,
    text_of,
    lambda text: (
      f"Count how often each coded word occurs in the text below. {text}\nQuestion: which three "
      f"coded words occur most often above? Leave out the dots, and explain nothing."
    ),
    room,
    facts=(),
    answers=coded[1 : 1 + _FREQUENT],
    candidates=r"\b[a-z]{6}\b",
    max_new_tokens=50,
    prefix="Answer: the three coded words that occur most often are",
    least=_LEAST_CODED,
  )


def iter_words(rng: random.Random, taken: set[str]):
  """Nouns, adjectives, verbs, then invented words, in random order; once each, none in `taken`."""
  known = sorted({*texts.NOUNS, *texts.ADJECTIVES, *texts.VERBS} - taken)
  rng.shuffle(known)
  yield from known
  used = taken | set(known)
  while True:
    yield from texts.distinct(rng, texts.invented_word, 1, used)


def _pool(rng: random.Random, count: int, taken: set[str]) -> list[str]:
  words = rng.sample(sorted({*texts.NOUNS, *texts.ADJECTIVES, *texts.VERBS} - taken), count)
  taken.update(words)
  return words


def _numbered(
  rng: random.Random, common: Sequence[str], often: int, others: Sequence[str], seldom: int
) -> str:
  words = [*common] * often + [*others] * seldom
  rng.shuffle(words)
  return _list(words)


def _list(words: Sequence[str]) -> str:
  return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def _ask_common(text: str) -> str:
  return (
    f"Some words of this numbered list occur more often than others. Remember those.\n{text}\n"
    f"Question: which {COMMON} words of the list above occur most often?\nAnswer:"
  )


def _coded(rng: random.Random) -> str:
  return "".join(rng.choices(string.ascii_lowercase, k=6))


def _refuse_depths(task: str, depths: Sequence[float] | None) -> None:
  if depths is not None:
    raise ValueError(f"{task} has no depth: what it asks for is all over the text; leave it out")
