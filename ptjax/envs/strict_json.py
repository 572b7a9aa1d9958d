"""JSON as its standard has it, and nothing that Python's reader lets through besides."""

import json
import math
from typing import Any

_SPACE = " \t\n\r"


class NotJsonError(ValueError):
  """The text is no JSON; the message says what and where."""


def decode(text: str, start: int = 0) -> tuple[Any, int]:
  """The value that begins at `start`, white space apart, and where it ends.

  Raises:
    NotJsonError: no value stands there, one with the same key twice in an object, NaN, an infinite
      number, or one that is nested or long beyond what Python reads.
  """
  start = skip_space(text, start)
  try:
    return _DECODER.raw_decode(text, start)
  except json.JSONDecodeError as error:
    raise NotJsonError(f"{error.msg} at character {error.pos - start}") from error
  except RecursionError as error:
    raise NotJsonError("nested too deeply") from error
  except NotJsonError:
    raise
  except ValueError as error:  # an integer of thousands of digits
    raise NotJsonError(str(error).partition(";")[0]) from error


def skip_space(text: str, start: int) -> int:
  """Where the text goes on after white space."""
  while start < len(text) and text[start] in _SPACE:
    start += 1
  return start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  made = dict(pairs)
  if len(made) < len(pairs):
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise NotJsonError(f"the key {twice!r} stands twice in one object")
  return made


def _constant(name: str) -> Any:
  raise NotJsonError(f"{name} is no JSON")


def _float(digits: str) -> float:
  number = float(digits)
  if not math.isfinite(number):
    raise NotJsonError(f"the number {digits} is too large")
  return number


_DECODER = json.JSONDecoder(
  object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, strict=True
)
