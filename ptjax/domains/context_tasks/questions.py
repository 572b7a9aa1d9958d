"""Questions over many documents: one hop, and two (RULER, 3.4), over people who do not exist.

With the depth of the document given it is the test of "Lost in the middle" (N. F. Liu et al.,
2023, section 2).
"""

import random
from collections.abc import Iterator, Sequence

from ptjax.domains.context_tasks import texts
from ptjax.domains.context_tasks.problem import Problem, Room, filled, place, spread_depths

MAX_NEW_TOKENS = 32
_TRADES = ("bridges", "clocks", "cameras", "pianos", "sailing boats", "lamps", "bicycles", "maps")
_FORMS = ("Works", "Brothers", "Partners", "Company", "Foundry", "Workshop")


def make_one_hop(
  task: str, seed: int, room: Room, depths: Sequence[float] | None = None
) -> Problem:
  """Where somebody was born: one document says it.

  Raises:
    ValueError: `depths` of another number than 1, or a room that cannot be filled.
  """
  rng = random.Random(f"{task}/{seed}")
  taken: set[str] = set()
  person, firm = _person(rng, taken), _firm(rng, taken)
  born = rng.choice(texts.CITIES)
  question = f"In which town was {person} born?"
  document = _about_person(rng, person, firm, born)
  return _make(task, seed, room, depths, rng, taken, [document], question, born)


def make_two_hops(
  task: str, seed: int, room: Room, depths: Sequence[float] | None = None
) -> Problem:
  """Where the firm that somebody works for has its seat: two documents say it together.

  Raises:
    ValueError: `depths` of another number than 2, or a room that cannot be filled.
  """
  rng = random.Random(f"{task}/{seed}")
  taken: set[str] = set()
  person, firm = _person(rng, taken), _firm(rng, taken)
  born, seat = rng.sample(texts.CITIES, 2)
  question = f"In which town does the firm that {person} works for have its seat?"
  documents = [_about_person(rng, person, firm, born), _about_firm(rng, firm, seat)]
  return _make(task, seed, room, depths, rng, taken, documents, question, seat)


def _make(task, seed, room, depths, rng, taken, documents, question, answer) -> Problem:
  if depths is None:
    depths = spread_depths(rng, len(documents))
  elif len(depths) != len(documents):
    raise ValueError(f"{task}: {len(depths)} depths for {len(documents)} documents; one for each")
  others = texts.Growing(_others(random.Random(f"{task}/{seed}/others"), taken))

  def text_of(units: int) -> str:
    placed = place(others.first(units), documents, depths)
    return "\n\n".join(f"Document {i}: {text}" for i, text in enumerate(placed, 1))

  instruction = "Answer the question from the documents below, with the name alone."
  return filled(
    task,
    text_of,
    lambda text: f"{instruction}\n\n{text}\n\n{instruction}\n\nQuestion: {question}",
    room,
    facts=documents,
    answers=[answer],
    candidates="|".join(texts.CITIES),
    max_new_tokens=MAX_NEW_TOKENS,
    prefix="Answer:",
    match="part",
  )


def _others(rng: random.Random, taken: set[str]) -> Iterator[str]:
  """Documents about other people and firms."""
  while True:
    if rng.random() < 0.5:
      yield _about_firm(rng, _firm(rng, taken), rng.choice(texts.CITIES))
    else:
      firm, born = _firm(rng, taken), rng.choice(texts.CITIES)
      yield _about_person(rng, _person(rng, taken), firm, born)


def _person(rng: random.Random, taken: set[str]) -> str:
  """A name that nobody has yet: with invented surnames there are 17 million."""
  return texts.distinct(
    rng, lambda r: f"{r.choice(texts.FIRST_NAMES)} {texts.invented_word(r).capitalize()}", 1, taken
  )[0]


def _firm(rng: random.Random, taken: set[str]) -> str:
  return texts.distinct(
    rng, lambda r: f"{texts.invented_word(r).capitalize()} {r.choice(_FORMS)}", 1, taken
  )[0]


def _about_person(rng: random.Random, person: str, firm: str, born: str) -> str:
  year = rng.randint(1900, 1999)
  trade, first = rng.choice(texts.NOUNS), person.partition(" ")[0]
  return (
    f"{person}\n{person} was born in {born} in {year}. As a child {first} liked to "
    f"{rng.choice(texts.VERBS)} every {trade} in sight. Today {person} works for {firm}."
  )


def _about_firm(rng: random.Random, firm: str, seat: str) -> str:
  return (
    f"{firm}\n{firm} has made {rng.choice(_TRADES)} since {rng.randint(1850, 1999)}. Its seat is "
    f"in {seat}, and {rng.randint(12, 900)} people work there."
  )
