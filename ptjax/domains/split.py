"""Train and held-out questions, told apart by what they ask.

The hash of a question's canonical text decides its split, so a question is in the same split
whichever seed made it, and no held-out question is ever trained on.
"""

import hashlib
import random
from collections.abc import Callable
from typing import TypeVar

from ptjax.envs.environment import Split

HELDOUT_SHARE = 0.2
MAX_DRAWS = 1000

Question = TypeVar("Question")


def split_of(canonical: str) -> Split:
  """The split of a question; case and white space do not count."""
  text = " ".join(canonical.casefold().split())
  digest = hashlib.sha256(text.encode()).digest()
  return "heldout" if int.from_bytes(digest[:8], "big") < HELDOUT_SHARE * 2**64 else "train"


def draw(
  make: Callable[[random.Random], Question],
  canonical: Callable[[Question], str],
  seed: int,
  split: Split,
) -> Question:
  """The first question of `split` among those made from the sub-seeds (seed, 0), (seed, 1), ...

  Raises ValueError for an unknown split, and where `MAX_DRAWS` sub-seeds give none: the
  generator then has too few different questions.
  """
  if split not in ("train", "heldout"):
    raise ValueError(f"split {split!r} is unknown; use 'train' or 'heldout'")
  for i in range(MAX_DRAWS):
    question = make(random.Random(f"{seed}/{i}"))
    if split_of(canonical(question)) == split:
      return question
  raise ValueError(
    f"no {split} question among {MAX_DRAWS} draws from seed {seed}; the generator makes too few "
    "different questions, so widen its parameters"
  )
