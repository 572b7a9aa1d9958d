"""A long-context problem, its scoring, and how a text is filled up to a length.

A problem is a pure function of a seed and of the room that it has: a number of tokens, counted by
whoever asks, so that an evaluation counts the model's own tokens.
"""

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from typing import Literal

from ptjax.domains.context_tasks import quantities

Count = Callable[[str, str], int]
"""(prompt, prefix) -> tokens that the model reads before it begins to answer."""

Match = Literal["all", "part", "number"]


@dataclasses.dataclass(frozen=True)
class Room:
  """How long a problem is.

  Attributes:
    tokens: of the prompt and of the answer's allowance together, at most.
    count: counts the tokens of a prompt and the beginning of its answer.
    slack: tokens that may be left over; None for 2% of `tokens`, and at least 128.
  """

  tokens: int
  count: Count
  slack: int | None = None

  @property
  def tolerance(self) -> int:
    return max(128, self.tokens // 50) if self.slack is None else self.slack


@dataclasses.dataclass(frozen=True)
class Problem:
  """One question over a long text.

  Attributes:
    task: the name of its kind.
    prompt: what the model is asked, the text included.
    prefix: how its answer begins; "" where it begins by itself.
    answers: the strings that are looked for.
    match: `all` scores the share of the answers that are found, `part` whether any is, `number`
      whether the response gives the one answer, see `quantities.agrees`.
    max_new_tokens: allowance of the answer.
    depths: where in the text each needed fact begins, 0 to 1, in order of `facts`.
    facts: the needed pieces of text.
    candidates: a regular expression that finds in a response what may be meant as an answer.
    tokens: of prompt and prefix, as the room counted them.
  """

  task: str
  prompt: str
  prefix: str
  answers: tuple[str, ...]
  match: Match
  max_new_tokens: int
  depths: tuple[float, ...]
  facts: tuple[str, ...]
  candidates: str
  tokens: int


def score(problem: Problem, response: str) -> float:
  """RULER's rules, and numbers: case does not count, nor where in the response an answer stands.

      all   |{a in answers: a in response}| / |answers|
      part  1 where any answer is in the response, else 0

  Source: C.-P. Hsieh et al., "RULER: What's the real context size of your long-context language
  models?", 2024, section 4; `string_match_all` and `string_match_part` of its code.
  """
  if problem.match == "number":
    return float(quantities.agrees(response, problem.answers[0]))
  text = re.sub(r"[\x00-\x1f]", "\n", response.strip()).casefold()
  found = [answer.casefold() in text for answer in problem.answers]
  return float(any(found)) if problem.match == "part" else sum(found) / len(found)


def precise_score(answers: Sequence[str], candidates: str, response: str) -> float:
  """The share of the answers that are found, times the share of right ones in what is named.

  For training: under `score`, naming everything that the text holds earns all.
  """
  named = {match.casefold() for match in re.findall(candidates, response)}
  found = named & {answer.casefold() for answer in answers}
  return len(found) / len(answers) * len(found) / max(len(named), 1)


def spread_depths(rng: random.Random, number: int) -> tuple[float, ...]:
  """Depths of so many facts, one in each equal part of the text, in random order.

  Over problems each of them is uniform on [0, 1): no place of a text is worth more attention.
  """
  depths = [(i + rng.random()) / number for i in range(number)]
  rng.shuffle(depths)
  return tuple(depths)


def even_depth(index: int, shift: float = 0.0) -> float:
  """The depth of the index-th problem: the van der Corput sequence of base 2, shifted modulo 1.

  Any 2^k problems in a row, from a multiple of 2^k on, have one in each of the 2^k equal parts.
  """
  value, weight = shift, 0.5
  while index:
    value += weight * (index & 1)
    index, weight = index >> 1, weight / 2
  return value % 1.0


def depth_histogram(depths: Sequence[float], bins: int) -> list[int]:
  """How many depths fall into each of `bins` equal parts of [0, 1]; 1 belongs to the last.

  Raises:
    ValueError: a depth outside [0, 1].
  """
  counts = [0] * bins
  for depth in depths:
    if not 0 <= depth <= 1:
      raise ValueError(f"depth {depth} must be from 0 (the beginning) to 1 (the end)")
    counts[min(int(depth * bins), bins - 1)] += 1
  return counts


def place(units: Sequence[str], facts: Sequence[str], depths: Sequence[float]) -> list[str]:
  """The units with each fact put before the unit at its depth; facts at one place keep order."""
  by_place: dict[int, list[str]] = {}
  for fact, depth in sorted(zip(facts, depths, strict=True), key=lambda pair: pair[1]):
    by_place.setdefault(round(depth * len(units)), []).append(fact)
  placed: list[str] = []
  for i in range(len(units) + 1):
    placed += by_place.get(i, [])
    placed += units[i : i + 1]
  return placed


def filled(
  task: str,
  text_of: Callable[[int], str],
  ask: Callable[[str], str],
  room: Room,
  *,
  facts: Sequence[str],
  answers: Sequence[str],
  candidates: str,
  max_new_tokens: int,
  prefix: str = "",
  match: Match = "all",
  least: int = 1,
) -> Problem:
  """The problem whose text is as long as the room allows.

  Args:
    task, facts, answers, candidates, max_new_tokens, prefix, match: of the problem.
    text_of: the text of so many units of filling; longer with every unit, as a rule.
    ask: the prompt from the text.
    room: what prompt, prefix and `max_new_tokens` fill, to within its tolerance.
    least: units at least.

  Raises:
    ValueError: the shortest text does not fit, or a unit is too large for the tolerance.
  """
  limit = room.tokens - max_new_tokens

  def tokens(units: int) -> int:
    return room.count(ask(text_of(units)), prefix)

  units = most_units(tokens, limit, room.tolerance, least)
  text = text_of(units)
  prompt, size = ask(text), tokens(units)
  if size > limit:
    raise ValueError(
      f"{task}: its shortest text takes {size} tokens and {max_new_tokens} for the answer, the "
      f"length is {room.tokens}; make it at least {size + max_new_tokens}"
    )
  if size < limit - room.tolerance:
    raise ValueError(
      f"{task}: {size} of {limit} tokens are filled, {room.tolerance} may be left; raise the slack"
    )
  places = [text.index(fact) / max(len(text) - len(fact), 1) for fact in facts]
  return Problem(
    task=task,
    prompt=prompt,
    prefix=prefix,
    answers=tuple(answers),
    match=match,
    max_new_tokens=max_new_tokens,
    depths=tuple(places),
    facts=tuple(facts),
    candidates=candidates,
    tokens=size,
  )


def most_units(tokens: Callable[[int], int], limit: int, slack: int, least: int) -> int:
  """A number of units whose tokens are at most `limit` and at least `limit - slack`.

  `tokens` should grow with the units, nearly in proportion: it is then called four or five times,
  as each call may have to read a million tokens. Where no number meets both, the largest that was
  found to meet the first is returned, or `least`.
  """
  low, low_tokens = least, tokens(least)
  if low_tokens >= limit - slack:
    return low
  high = low + max(16, low)
  high_tokens = tokens(high)
  while high_tokens <= limit:
    if high_tokens >= limit - slack:
      return high
    each = max((high_tokens - low_tokens) / (high - low), 0.1)
    low, low_tokens = high, high_tokens
    # Aimed at the middle of the tolerance, and beyond all others seen.
    high += max(int((limit - slack / 2 - low_tokens) / each), 1)
    high_tokens = tokens(high)
  halve = False
  while high - low > 1:
    each = (high_tokens - low_tokens) / (high - low)
    guess = low + int((limit - slack / 2 - low_tokens) / each)
    middle = (low + high) // 2 if halve else min(max(guess, low + 1), high - 1)
    halve = not halve
    size = tokens(middle)
    if size > limit:
      high, high_tokens = middle, size
    elif size < limit - slack:
      low, low_tokens = middle, size
    else:
      return middle
  return low
