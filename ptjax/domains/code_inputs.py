"""Argument generators of the code templates: each draws one argument from an RNG."""

import random
from collections.abc import Callable, Mapping
from typing import Any

Draw = Callable[[random.Random], Any]

_WORDS = (
  *("apple", "banana", "cherry", "Delta", "echo", "forest", "GOLD", "harbor", "Iris", "jungle"),
  *("kayak", "lemon", "Mango", "night", "ocean", "paper", "queen", "River", "stone", "tiger"),
  *("level", "noon", "radar", "tree", "window"),
)


def integer(low: int = -20, high: int = 20) -> Draw:
  return lambda rng: rng.randint(low, high)


def integers(min_length: int = 1, max_length: int = 7, low: int = -9, high: int = 20) -> Draw:
  return lambda rng: [rng.randint(low, high) for _ in range(rng.randint(min_length, max_length))]


def word(rng: random.Random) -> str:
  return rng.choice(_WORDS)


def maybe_palindrome(rng: random.Random) -> str:
  """A word, or (one time in two) a word and its mirror image."""
  text = word(rng)
  return text + text[::-1] if rng.random() < 0.5 else text


def words(rng: random.Random) -> list[str]:
  return [word(rng) for _ in range(rng.randint(1, 5))]


def sentence(rng: random.Random) -> str:
  return " ".join(words(rng))


def counts(rng: random.Random) -> Mapping[str, int]:
  """A dict from lower-case words to small integers."""
  keys = rng.sample(_WORDS, rng.randint(1, 8))
  return {key.lower(): rng.randint(-5, 15) for key in keys}
