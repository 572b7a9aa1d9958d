"""Kinds of constraint on a text that a program can verify, after IFEval (Zhou et al. 2023,
arXiv:2311.07911, table 1): what is asked, whether a text meets it, and a text that does.
"""

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

from ptjax.domains import instruction_texts as texts

_WORD = re.compile(r"\w+", re.UNICODE)
_BULLET = re.compile(r"[-*] +\S")

Fit = Callable[[Any, str], str]


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of constraint.

  Attributes:
    name: unique.
    group: at most one of a group is asked at once.
    draw: its parameter, plain data.
    ask: the sentence that asks for it.
    met: whether a text meets it.
    fit: changes a text to meet it, keeping what earlier kinds of `KINDS` have asked.
    conflicts: names of kinds that cannot be asked with it.
  """

  name: str
  group: str
  draw: Callable[[random.Random], Any]
  ask: Callable[[Any], str]
  met: Callable[[Any, str], bool]
  fit: Fit
  conflicts: tuple[str, ...] = ()


def words(text: str) -> list[str]:
  """Runs of letters and digits."""
  return _WORD.findall(text)


def language_of(text: str) -> str | None:
  """The language with the most function words; None for none or a tie."""
  found = [w.casefold() for w in words(text)]
  counts = {name: sum(w in known for w in found) for name, known in texts.FUNCTION_WORDS.items()}
  best = max(counts, key=lambda name: counts[name])
  rivals = [n for name, n in counts.items() if name != best]
  return best if counts[best] > max(rivals) else None


def _lengthen(least: int, text: str) -> str:
  filler = texts.FILLERS[language_of(text) or "English"]
  missing = max(0, least - len(words(text)))
  times = -(-missing // len(words(filler)))
  return " ".join([text, *[filler] * times])


def _bullets(text: str) -> list[str]:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines if lines and all(_BULLET.match(line) for line in lines) else []


def _pieces(text: str, count: int) -> list[str]:
  """The words of a text in `count` parts, none empty."""
  found = text.split()
  size = len(found) // count
  cuts = [i * size for i in range(count)] + [len(found)]
  return [" ".join(found[a:b]) for a, b in itertools.pairwise(cuts)]


def _paragraphs(text: str) -> list[str]:
  return [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _sentences(text: str) -> list[str]:
  return [part for part in re.split(r"[.!?]+(?:\s|$)", text) if part.strip()]


def _object(text: str) -> dict[str, Any]:
  try:
    value = json.loads(text)
  except (ValueError, RecursionError):
    return {}
  return value if isinstance(value, dict) else {}


def _has_word(word: str, text: str) -> bool:
  return word.casefold() in {w.casefold() for w in words(text)}


KINDS: tuple[Kind, ...] = (
  Kind(
    "language", "language",
    draw=lambda rng: rng.choice(("German", "French", "Spanish")),
    ask=lambda name: f"Write in {name}.",
    met=lambda name, text: language_of(text) == name,
    fit=lambda name, text: texts.SENTENCES[name].format(city=text.split()[0]),
    conflicts=("keyword", "ending", "json"),
  ),
  Kind(
    "at_least", "length",
    draw=lambda rng: rng.randrange(20, 61, 5),
    ask=lambda least: f"Use at least {least} words.",
    met=lambda least, text: len(words(text)) >= least,
    fit=_lengthen,
  ),
  Kind(
    "at_most", "length",
    draw=lambda rng: rng.randrange(30, 61, 5),
    ask=lambda most: f"Use at most {most} words.",
    met=lambda most, text: len(words(text)) <= most,
    fit=lambda most, text: text,
  ),
  Kind(
    "keyword", "keyword",
    draw=lambda rng: sorted(rng.sample(texts.KEYWORDS, 2)),
    ask=lambda pair: f'Include the words "{pair[0]}" and "{pair[1]}".',
    met=lambda pair, text: all(_has_word(word, text) for word in pair),
    fit=lambda pair, text: f"{text} with {pair[0]} and {pair[1]}",
  ),
  Kind(
    "forbidden", "forbidden",
    draw=lambda rng: rng.choice(texts.FORBIDDEN),
    ask=lambda word: f'Do not use the word "{word}".',
    met=lambda word, text: not _has_word(word, text),
    fit=lambda word, text: text,
  ),
  Kind(
    "no_commas", "punctuation",
    draw=lambda rng: None,
    ask=lambda _: "Do not use any comma.",
    met=lambda _, text: "," not in text,
    fit=lambda _, text: text,
    conflicts=("json",),
  ),
  Kind(
    "bullets", "layout",
    draw=lambda rng: rng.randint(2, 5),
    ask=lambda n: f'Answer with exactly {n} bullet points, each on a line that begins with "- ", '
    "and nothing else.",
    met=lambda n, text: len(_bullets(text)) == n,
    fit=lambda n, text: "\n".join(f"- {part}" for part in _pieces(text, n)),
  ),
  Kind(
    "paragraphs", "layout",
    draw=lambda rng: rng.randint(2, 4),
    ask=lambda n: f"Write exactly {n} paragraphs, separated by an empty line.",
    met=lambda n, text: len(_paragraphs(text)) == n,
    fit=lambda n, text: "\n\n".join(_pieces(text, n)),
  ),
  Kind(
    "sentences", "layout",
    draw=lambda rng: rng.randint(2, 4),
    ask=lambda n: f"Write exactly {n} sentences.",
    met=lambda n, text: len(_sentences(text)) == n,
    fit=lambda n, text: " ".join(f"{part}." for part in _pieces(text, n)),
  ),
  Kind(
    "json", "layout",
    draw=lambda rng: rng.choice(("text", "answer", "note")),
    ask=lambda key: f'Answer with one JSON object whose only key is "{key}", and nothing else.',
    met=lambda key, text: list(_object(text)) == [key] and isinstance(_object(text)[key], str),
    fit=lambda key, text: json.dumps({key: text}),
    conflicts=("ending", "upper", "quotes"),
  ),
  Kind(
    "ending", "ending",
    draw=lambda rng: rng.choice(texts.ENDINGS),
    ask=lambda end: f'End with exactly "{end}" and nothing after it.',
    met=lambda end, text: text.rstrip().casefold().endswith(end.casefold()),
    fit=lambda end, text: f"{text.rstrip('.')} {end}",
    conflicts=("quotes",),
  ),
  Kind(
    "upper", "case",
    draw=lambda rng: None,
    ask=lambda _: "Write in capital letters only.",
    met=lambda _, text: any(c.isalpha() for c in text) and text == text.upper(),
    fit=lambda _, text: text.upper(),
  ),
  Kind(
    "lower", "case",
    draw=lambda rng: None,
    ask=lambda _: "Write in lower-case letters only.",
    met=lambda _, text: any(c.isalpha() for c in text) and text == text.lower(),
    fit=lambda _, text: text.lower(),
  ),
  Kind(
    "quotes", "wrap",
    draw=lambda rng: None,
    ask=lambda _: "Put your whole answer between double quotation marks.",
    met=lambda _, text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    fit=lambda _, text: f'"{text}"',
    conflicts=("bullets", "sentences"),
  ),
)  # fmt: skip

BY_NAME = {kind.name: kind for kind in KINDS}


def choose(rng: random.Random, count: int) -> list[Kind]:
  """`count` kinds that can be asked together, in the order of `KINDS`."""
  chosen: list[Kind] = []
  for kind in rng.sample(KINDS, len(KINDS)):
    free = all(
      kind.group != other.group
      and kind.name not in other.conflicts
      and other.name not in kind.conflicts
      for other in chosen
    )
    if free and len(chosen) < count:
      chosen.append(kind)
  return [kind for kind in KINDS if kind in chosen]
