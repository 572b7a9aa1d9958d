"""The shapes of the code tasks: what a function shall return, as a sentence and as Python.

A template's expression is at once the reference implementation, from which the hidden tests
get their expected values, and the oracle answer. `{k}` and `{w}` stand for constants.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from ptjax.domains.code_inputs import (
  Draw,
  counts,
  integer,
  integers,
  maybe_palindrome,
  sentence,
  word,
  words,
)

SMALL = range(2, 13)
SHORT = range(2, 5)
AFFIXES = ("!", "?", "ing", "abc", "xyz", "-", "ok", "ya", "end", "go")
LETTERS = "abcdeghiklmnorst"

NUMBER, NUMBERS = integer(), integers()
NATURAL = integer(0, 30)


@dataclasses.dataclass(frozen=True)
class Template:
  """One task shape.

  Attributes:
    name: unique; the default name of the function, so an identifier and no builtin.
    parameters: the function's parameters, "a, b".
    spec: completes "returns ...".
    expression: Python expression over the parameters with the same meaning.
    draws: generator of each argument, in order.
    constants: choices for the placeholders in `spec` and `expression`.
  """

  name: str
  parameters: str
  spec: str
  expression: str
  draws: tuple[Draw, ...]
  constants: Mapping[str, Sequence[int | str]] = dataclasses.field(default_factory=dict)


def _int(name: str, spec: str, expression: str, draw: Draw = NUMBER, **constants) -> Template:
  return Template(name, "n", spec, expression, (draw,), constants)


def _pair(name: str, spec: str, expression: str, draw: Draw = NUMBER, **constants) -> Template:
  return Template(name, "a, b", spec, expression, (draw, draw), constants)


def _text(name: str, spec: str, expression: str, draw: Draw = word, **constants) -> Template:
  return Template(name, "s", spec, expression, (draw,), constants)


def _list(name: str, spec: str, expression: str, draw: Draw = NUMBERS, **constants) -> Template:
  return Template(name, "xs", spec, expression, (draw,), constants)


def _dict(name: str, spec: str, expression: str, **constants) -> Template:
  return Template(name, "d", spec, expression, (counts,), constants)


INTEGERS = (
  _int("add", "n plus {k}", "n + {k}", k=SMALL),
  _int("subtract", "n minus {k}", "n - {k}", k=SMALL),
  _int("multiply", "n times {k}", "n * {k}", k=SMALL),
  _int("linear", "n times {k} plus {m}", "n * {k} + {m}", k=SMALL, m=SMALL),
  _int("square_plus", "the square of n plus {k}", "n ** 2 + {k}", k=SMALL),
  _int("remainder", "the remainder of n divided by {k}", "n % {k}", k=SMALL),
  _int("quotient", "n divided by {k}, rounded down", "n // {k}", k=SMALL),
  _int("divisible", "True if n is divisible by {k}, else False", "n % {k} == 0", k=range(2, 6)),
  _int("greater", "True if n is greater than {k}, else False", "n > {k}", k=SMALL),
  _int("at_least", "the larger of n and {k}", "max(n, {k})", k=SMALL),
  _int("absolute_plus", "the absolute value of n plus {k}", "abs(n) + {k}", k=SMALL),
  _int("digit_sum", "the sum of the digits of n", "sum(int(c) for c in str(n))", integer(10, 999)),
  _int("num_digits", "the number of digits of n", "len(str(n))", integer(0, 99999)),
  _int("sum_to", "the sum of all integers from 1 to n", "sum(range(1, n + 1))", NATURAL),
  _int("even", "True if n is even, else False", "n % 2 == 0"),
)
PAIRS = (
  _pair("sum_plus", "the sum of a and b plus {k}", "a + b + {k}", k=SMALL),
  _pair("product_plus", "the product of a and b plus {k}", "a * b + {k}", k=SMALL),
  _pair("difference", "a minus b", "a - b"),
  _pair("sum_times", "the sum of a and b, times {k}", "(a + b) * {k}", k=SMALL),
  _pair("weighted", "{k} times a plus b", "{k} * a + b", k=SMALL),
  _pair("larger", "the larger of a and b", "max(a, b)"),
  _pair("smaller_plus", "the smaller of a and b, plus {k}", "min(a, b) + {k}", k=SMALL),
  _pair("distance", "the absolute difference of a and b", "abs(a - b)"),
  _pair("sum_squares", "the sum of the squares of a and b", "a * a + b * b"),
  _pair("equal", "True if a equals b, else False", "a == b", integer(0, 6)),
)
STRINGS = (
  _text("reverse", "the string s reversed", "s[::-1]"),
  _text("upper", "the string s in upper case", "s.upper()"),
  _text("length_plus", "the length of the string s plus {k}", "len(s) + {k}", k=SMALL),
  _text("append", 'the string s followed by "{w}"', 's + "{w}"', w=AFFIXES),
  _text("prepend", 'the string "{w}" followed by s', '"{w}" + s', w=AFFIXES),
  _text("repeat", "the string s repeated {k} times", "s * {k}", k=SMALL),
  _text("first", "the first character of the string s", "s[0]"),
  _text("last", "the last character of the string s", "s[-1]"),
  _text("prefix", "the first {k} characters of the string s", "s[:{k}]", k=SHORT),
  _text("suffix", "the last {k} characters of the string s", "s[-{k}:]", k=SHORT),
  _text(
    "count_letter", 'how often "{w}" occurs in the string s', 's.count("{w}")', sentence, w=LETTERS
  ),
  _text("has_letter", 'True if s contains "{w}", else False', '"{w}" in s', sentence, w=LETTERS),
  _text("remove", 'the string s without the letter "{w}"', 's.replace("{w}", "")', w=LETTERS),
  _text("count_vowels", "the number of vowels in s", 'sum(c in "aeiouAEIOU" for c in s)'),
  _text("num_words", "the number of words in s", "len(s.split())", sentence),
  _text("split", "the list of words in s", "s.split()", sentence),
  _text("palindrome", "True if s is a palindrome, else False", "s == s[::-1]", maybe_palindrome),
)
LISTS = (
  _list("sum_list", "the sum of the list xs plus {k}", "sum(xs) + {k}", k=SMALL),
  _list("largest", "the largest element of the list xs", "max(xs)"),
  _list("smallest", "the smallest element of the list xs", "min(xs)"),
  _list("length", "the length of the list xs plus {k}", "len(xs) + {k}", k=SMALL),
  _list("first_item", "the first element of the list xs", "xs[0]"),
  _list("last_item", "the last element of the list xs", "xs[-1]"),
  _list("reverse_list", "the list xs reversed", "xs[::-1]"),
  _list("sort_up", "the list xs sorted", "sorted(xs)"),
  _list("sort_down", "the list xs sorted in descending order", "sorted(xs, reverse=True)"),
  _list("add_each", "xs with {k} added to each element", "[x + {k} for x in xs]", k=SMALL),
  _list("times_each", "xs with each element times {k}", "[x * {k} for x in xs]", k=SMALL),
  _list("evens", "only the even numbers of xs", "[x for x in xs if x % 2 == 0]"),
  _list("above", "the elements of xs greater than {k}", "[x for x in xs if x > {k}]", k=SMALL),
  _list("count_above", "how many elements of xs exceed {k}", "sum(x > {k} for x in xs)", k=SMALL),
  _list("span", "the largest minus the smallest element of xs", "max(xs) - min(xs)"),
  _list("contains", "True if {k} is in the list xs, else False", "{k} in xs", k=range(2, 6)),
  _list("first_items", "the first {k} elements of the list xs", "xs[:{k}]", k=SHORT),
  _list("append_item", "the list xs with {k} appended", "xs + [{k}]", k=SMALL),
  _list("lengths", "the list of the lengths of the strings in xs", "[len(x) for x in xs]", words),
  _list("join", 'the strings in xs joined by "{w}"', '"{w}".join(xs)', words, w=AFFIXES),
)
DICTS = (
  _dict("num_keys", "the number of keys in the dict d", "len(d)"),
  _dict("values_sum", "the sum of the values of the dict d plus {k}", "sum(d.values()) + {k}",
        k=SMALL),
  _dict("largest_value", "the largest value in the dict d", "max(d.values())"),
  _dict("sorted_keys", "the sorted list of the keys of the dict d", "sorted(d)"),
  _dict("lookup", 'd["{w}"], or {k} if "{w}" is not a key of d', 'd.get("{w}", {k})',
        w=("apple", "lemon", "tree"), k=SMALL),
)  # fmt: skip

TEMPLATES = (*INTEGERS, *PAIRS, *STRINGS, *LISTS, *DICTS)
