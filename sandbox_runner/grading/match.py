"""Compares what a module returned with what was expected, on the host."""

import json
from typing import Any

from sandbox_runner.grading.guest.plain import MAPPINGS, encode


def matches(encoded: Any, expected: Any) -> bool:
  """Whether hostile data stands for a value of this type and equal to it: True is not 1.

  It is never decoded: the work is linear, where a dict of numbers that were chosen for their hashes
  would take the square of its size to build.
  """
  kind = type(expected)
  if kind is list:
    return isinstance(encoded, list) and match_all(encoded, expected)
  if kind is float:
    return type(encoded) is float and encoded == expected
  if kind not in (tuple, *MAPPINGS):
    return text(encoded) == text(encode(expected))
  if not isinstance(encoded, dict) or len(encoded) != 1:
    return False
  if kind is tuple:
    content = encoded.get("tuple")
    return isinstance(content, list) and match_all(content, expected)
  try:
    found = {text(key): value for key, value in encoded["dict"]}
  except (KeyError, TypeError, ValueError):
    return False
  wanted = {text(encode(key)): value for key, value in expected.items()}
  return (
    len(encoded["dict"]) == len(found)
    and found.keys() == wanted.keys()
    and all(matches(found[key], value) for key, value in wanted.items())
  )


def match_all(encoded: Any, expected: Any) -> bool:
  return len(encoded) == len(expected) and all(map(matches, encoded, expected))


def text(encoded: Any) -> str:
  """Tells types apart that Python holds for equal; equal for equal values without a dict."""
  return json.dumps(encoded)
