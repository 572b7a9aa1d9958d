"""What reasoning-gym's scorers must not be given, and the right answers that its tasks lack.

Some of its scorers evaluate the answer as a Python expression, by `eval` or by sympy's parser,
which is `eval` too. A policy would learn that. What reaches them is therefore only text without
calls of anything but a few functions, and without attributes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Entry = Mapping[str, Any]
Accepts = Callable[[str, Entry], bool]

LONGEST = 10_000

_FUNCTIONS = "sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|exp|log|sqrt|pi|oo"
_SMALL = r"[A-Za-z]|-?\d{1,2}|\(\s*-?\d{1,2}\s*(?:/\s*\d{1,2}\s*)?\)"
_POWER = rf"(?:\*\*|\^)\s*(?:{_SMALL})(?!\s*(?:\*\*|\^|[\w.(]))"  # no tower of them
_EXPRESSION = re.compile(
  rf"(?:\s+|\d+(?:\.\d+)?(?![\w.])|(?:{_FUNCTIONS}|[A-Za-z])(?!\w)|{_POWER}|\*(?!\*)|[-+/(),])+"
)
_LIST = re.compile(r"[\[\]\w\s,'\"-]*")
_COMPLEX = re.compile(r"[\d\s.+*()ij-]{,100}")


def _is_expression(answer: str, entry: Entry) -> bool:
  del entry
  return len(answer) <= 500 and _EXPRESSION.fullmatch(answer) is not None


def _is_list(answer: str, entry: Entry) -> bool:
  del entry
  return _LIST.fullmatch(answer) is not None


def _uses_the_numbers(answer: str, entry: Entry) -> bool:
  """The package's scorer takes any four numbers in range, so that one answer solves every task."""
  if not _is_expression(answer, entry):
    return False
  used = sorted(map(int, re.findall(r"\d+", answer)))
  return used == sorted(entry["metadata"]["numbers"])


def _is_finite(answer: str, entry: Entry) -> bool:
  """The package's scorer takes `nan` for the distance 0 to the right number."""
  del entry
  return _COMPLEX.fullmatch(answer) is not None


def _is_the_answer(answer: str, entry: Entry) -> bool:
  """The package's scorer takes any text at all."""
  return answer == entry["answer"]


_ACCEPTS: Mapping[str, Accepts] = {
  "binary_matrix": _is_list,
  "complex_arithmetic": _is_finite,
  "countdown": _is_expression,
  "game_of_life_halting": _is_the_answer,
  "n_queens": _is_list,
  "polynomial_multiplication": _is_expression,
  "puzzle24": _uses_the_numbers,
  "simple_integration": _is_expression,
  "spiral_matrix": _is_list,
  "string_insertion": _is_list,
}

# Tasks whose entry has no `answer` though the generator knows one.
_RIGHT: Mapping[str, Callable[[Entry], str]] = {
  "propositional_logic": lambda entry: entry["metadata"]["example_answer"],
  "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"],
}


def accepts(generator: str, answer: str, entry: Entry) -> bool:
  """Whether the scorer may see this answer; one that it may not see is wrong."""
  accept = _ACCEPTS.get(generator)
  return len(answer) <= LONGEST and (accept is None or accept(answer, entry))


def right_answer(generator: str, entry: Entry) -> str:
  """One right answer to a task."""
  right = _RIGHT.get(generator)
  return entry["answer"] if right is None else right(entry)
