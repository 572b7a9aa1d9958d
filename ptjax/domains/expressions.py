"""Arithmetic as a tool takes it: a strict grammar, exact numbers, bounded cost.

  sum      product (("+" | "-") product)*
  product  factor (("*" | "/") factor)*
  factor   "-" factor | NUMBER | "(" sum ")"
  NUMBER   digits, or digits "." digits

There are no names, powers, exponents, separators of thousands or percent signs: what is not in the
grammar is refused with the place, and never guessed at.
"""

import re
from fractions import Fraction

LONGEST = 200  # characters
DEEPEST = 20  # brackets and signs within each other
PLACES = 6  # of a result

_TOKEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|[-+*/()])")


class ExpressionError(ValueError):
  """Text that is no expression, or a division by zero; the message says what and where."""


def evaluate(text: str) -> Fraction:
  """The exact value. Raises ExpressionError."""
  if len(text) > LONGEST:
    raise ExpressionError(f"{len(text)} characters; write at most {LONGEST}")
  parser = _Parser(_tokens(text))
  value = parser.sum(0)
  if parser.next is not None:
    raise ExpressionError(f"expected an operator, found {parser.next!r}")
  return value


def written(value: Fraction) -> str:
  """In decimals, rounded half to even at `PLACES` places, without zeros at the end."""
  scaled = round(value * 10**PLACES)
  whole, part = divmod(abs(scaled), 10**PLACES)
  digits = f"{part:0{PLACES}d}".rstrip("0")
  return ("-" if scaled < 0 else "") + str(whole) + (f".{digits}" if digits else "")


def _tokens(text: str) -> list[str]:
  tokens, at = [], 0
  text = text.rstrip()
  while at < len(text):
    match = _TOKEN.match(text, at)
    if match is None:
      raise ExpressionError(
        f"{text[at:].strip()[:10]!r} at character {at}: write 0-9 . + - * / ( )"
      )
    tokens.append(match[1])
    at = match.end()
  return tokens


class _Parser:
  def __init__(self, tokens: list[str]):
    self._tokens, self._at = tokens, 0

  @property
  def next(self) -> str | None:
    return self._tokens[self._at] if self._at < len(self._tokens) else None

  def take(self) -> str:
    token = self.next
    if token is None:
      raise ExpressionError("the expression ends where a number or a bracket should stand")
    self._at += 1
    return token

  def sum(self, depth: int) -> Fraction:
    value = self.product(depth)
    while self.next in ("+", "-"):
      sign = 1 if self.take() == "+" else -1
      value += sign * self.product(depth)
    return value

  def product(self, depth: int) -> Fraction:
    value = self.factor(depth)
    while self.next in ("*", "/"):
      operator, factor = self.take(), self.factor(depth)
      if operator == "/" and factor == 0:
        raise ExpressionError("division by zero")
      value = value * factor if operator == "*" else value / factor
    return value

  def factor(self, depth: int) -> Fraction:
    if depth > DEEPEST:
      raise ExpressionError(f"nested deeper than {DEEPEST}")
    token = self.take()
    if token == "-":
      return -self.factor(depth + 1)
    if token == "(":
      value = self.sum(depth + 1)
      if self.next != ")":
        raise ExpressionError(f"expected ')', found {self.next or 'the end'!r}")
      self.take()
      return value
    if not token[0].isdigit():
      raise ExpressionError(f"expected a number or a bracket, found {token!r}")
    return Fraction(token)
