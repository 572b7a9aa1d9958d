"""Texts made from a seed: sentences of an essay, words, numbers and names.

Nothing is read from a file or a network, and none of it is anybody's: no model has seen it in
training, so what it answers it has read in its context.
"""

import itertools
import random
import uuid
from collections.abc import Callable, Iterator


def _split(words: str) -> tuple[str, ...]:
  return tuple(words.split())


ADJECTIVES = _split("""
  able amber ancient autumn bitter bold brave bright brisk broad calm careful cheerful chilly
  civil clever coastal crimson curious dainty daring deep distant dusty eager early earnest
  faint famous fancy fierce flat fond formal fragile frosty gentle giant glad golden graceful
  grand green grim hardy hasty hidden hollow honest humble icy idle jolly keen kind late lazy
  lively lonely loud loyal lucky mellow mighty mild modest narrow neat noble odd olive pale
  patient plain polite proud quaint quick quiet rapid rare royal rugged rustic sandy scarce
  sharp shy silent silver simple sleek slow smooth solemn spare steady stern stout subtle sunny
  swift tame tidy tough vague vast velvet wary weary wild wise witty young
""")
NOUNS = _split("""
  acorn anchor anvil apple arrow badge banner barrel basket beacon bell bench blanket boat
  bottle bowl branch bridge broom bucket button cabin candle canoe canvas carpet castle cedar
  chain chalk cloud clover coat coin copper cottage crane crown curtain desk door drum eagle
  engine falcon farm feather fence ferry fiddle field flag flute forest forge fountain gate
  glove goblet granite grove hammer harbor harp hat hedge helmet hill island ivory jacket kettle
  key kite ladder lake lamp lantern leaf ledger lemon lever lock loom maple marble meadow mill
  mirror mitten moon mountain needle nest oak oar onion orchard paddle palace parcel pebble
  pencil piano pillar pillow plum pond portal pump quill raft ribbon ring river road rope saddle
  sail shelf shield shovel spoon spring stable stone stove tower trail train tunnel valley vase
  village violin wagon wall well wheel willow window
""")
VERBS = _split("""
  admire borrow build carry collect compare copy count cover describe discover draw examine
  explain explore find follow forget gather guard ignore imagine inspect keep measure mend move
  notice paint plan polish praise prepare protect question record remember repair replace sell
  show sketch study trace trust visit watch weigh
""")
FIRST_NAMES = _split("""
  Ada Agnes Albert Alice Amina Anton Astrid Bela Boris Carla Cyril Dana Diego Edith Elena Emil
  Enzo Erika Farah Felix Fiona Georg Greta Hana Hugo Ida Igor Ines Irena Jakob Jana Jonas Karim
  Karla Kira Laila Lars Leon Lidia Lucia Magnus Marek Maria Mila Nadia Nils Nora Olaf Olga Omar
  Paula Petra Pierre Rana Rosa Rufus Selma Sofia Stefan Tamar Theo Ulla Vera Viktor Wanda Yara
  Yusuf Zoe
""")
CITIES = _split("""
  Aldermoor Ashbourne Bellvue Birchfield Brackwater Bramley Calder Castell Clearhaven Coldbrook
  Corrin Dunmore Eastmarch Elmstead Fairholt Farrowby Fenwick Foxdale Glenmoor Grantley Greywick
  Hallam Harrowgate Hartwell Hawksmere Holloway Ironbridge Kelston Kingsmead Lakeford Langport
  Larkspur Linden Lowick Marlow Maplewood Merrow Millbrook Northam Oakhurst Orwell Penrith
  Quarrydale Ravensby Redcliff Rosewell Saltmarsh Selwyn Shelbourne Silverton Stonehaven
  Sunderby Thornton Tidewater Underhill Valemont Wexley Whitcombe Wolverton Yarrow
""")
_STARTS = (
  "In the end", "As a rule", "On most days", "Now and then", "Long ago", "In winter",
  "After some thought", "By and by", "For many years", "At first", "Before noon", "Quite often",
)  # fmt: skip
_PEOPLE = _split("""
  baker carpenter clerk doctor farmer fisher gardener judge librarian mason merchant miller
  painter pilot poet porter sailor scholar shepherd singer smith tailor teacher weaver
""")
_SHAPES: tuple[Callable[[random.Random], str], ...] = (
  lambda r: (
    f"{r.choice(_STARTS)}, the {r.choice(_PEOPLE)} would {r.choice(VERBS)} the "
    f"{r.choice(ADJECTIVES)} {r.choice(NOUNS)} and {r.choice(VERBS)} the {r.choice(NOUNS)}."
  ),
  lambda r: (
    f"A {r.choice(_PEOPLE)} who wants to {r.choice(VERBS)} a {r.choice(NOUNS)} should first "
    f"{r.choice(VERBS)} a {r.choice(ADJECTIVES)} one."
  ),
  lambda r: (
    f"There is no {r.choice(NOUNS)} so {r.choice(ADJECTIVES)} that nobody would "
    f"{r.choice(VERBS)} it."
  ),
  lambda r: (
    f"The {r.choice(ADJECTIVES)} {r.choice(NOUNS)} stood beside the {r.choice(NOUNS)}, and "
    f"the {r.choice(_PEOPLE)} did not {r.choice(VERBS)} it."
  ),
  lambda r: (
    f"To {r.choice(VERBS)} is easier than to {r.choice(VERBS)}, said the "
    f"{r.choice(ADJECTIVES)} {r.choice(_PEOPLE)}."
  ),
  lambda r: (
    f"Some people {r.choice(VERBS)} their {r.choice(NOUNS)}; others {r.choice(VERBS)} a "
    f"{r.choice(NOUNS)} and call it {r.choice(ADJECTIVES)}."
  ),
  lambda r: (
    f"{r.choice(_STARTS)} one may {r.choice(VERBS)} what the {r.choice(_PEOPLE)} and the "
    f"{r.choice(_PEOPLE)} {r.choice(VERBS)} together."
  ),
)


class Growing:
  """The first so many items of an endless sequence; items already made are kept."""

  def __init__(self, items: Iterator[str]):
    self._items, self._made = items, list[str]()

  def first(self, number: int) -> list[str]:
    self._made += itertools.islice(self._items, max(number - len(self._made), 0))
    return self._made[:number]


def essay(rng: random.Random) -> Iterator[str]:
  """Sentences of an essay about nothing, without end; they hold no digits."""
  while True:
    yield rng.choice(_SHAPES)(rng)


def key_word(rng: random.Random) -> str:
  """Two words with a hyphen: one of 17,000."""
  return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def number(rng: random.Random) -> str:
  """Seven digits."""
  return str(rng.randint(10**6, 10**7 - 1))


def identifier(rng: random.Random) -> str:
  """A UUID of version 4."""
  return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def distinct(
  rng: random.Random, make: Callable[[random.Random], str], count: int, taken: set[str]
) -> list[str]:
  """So many different values of `make`, none of them in `taken`, which they are added to."""
  made: list[str] = []
  while len(made) < count:
    value = make(rng)
    if value not in taken:
      taken.add(value)
      made.append(value)
  return made


def invented_word(rng: random.Random) -> str:
  """Two or three syllables that can be spoken: one of 250,000, no word of a language on purpose."""
  syllables = rng.randint(2, 3)
  sound = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))
  return sound + rng.choice("lnrst")
