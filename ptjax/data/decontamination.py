"""Keeps evaluation items out of training data, by n-gram overlap.

Texts are compared as sequences of words: case-folded, without punctuation. A record is dropped
where it shares n consecutive words with an evaluation item; 13 as in GPT-3 (Brown et al., 2020,
appendix C). An item with fewer words is compared as a whole, down to 8 words, below which
chance overlaps outnumber the true ones; such items are counted as unchecked.
"""

import dataclasses
import json
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ptjax.data.chat_template import strings
from ptjax.data.sources import RandomAccess, Record

_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class DecontaminationConfig:
  """What to keep out.

  Attributes:
    evaluation: files of evaluation items, in a format of `ptjax.data.sources`; every text in an
      item counts.
    n: words of an overlap.
    min_words: the shortest item that is compared as a whole.
  """

  evaluation: tuple[str, ...]
  n: int = 13
  min_words: int = 8

  def __post_init__(self):
    if not self.evaluation:
      raise ValueError("decontaminate.evaluation names no file; give one, or set it to None")
    if not 1 <= self.min_words <= self.n:
      raise ValueError(
        f"decontaminate.min_words {self.min_words} must be from 1 to n, which is {self.n}"
      )


class Match(NamedTuple):
  """An overlap: the evaluation set, the number of the item in it, and the shared words."""

  evaluation: str
  item: int
  words: str


def words_of(text: str) -> list[str]:
  """Normalised words: compatibility form, case-folded, letters and digits only."""
  return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _ngrams(words: Sequence[str], n: int) -> Iterator[str]:
  return (" ".join(words[i : i + n]) for i in range(len(words) - n + 1))


class EvaluationIndex:
  """N-grams of evaluation items.

  Attributes:
    items: of each evaluation set the number of items.
    unchecked: of each evaluation set the items that are too short to be compared.
  """

  def __init__(self, n: int = 13, min_words: int = 8):
    self._n, self._min = n, min_words
    self._grams: dict[int, dict[str, tuple[str, int]]] = {}
    self.items: dict[str, int] = {}
    self.unchecked: dict[str, list[int]] = {}

  def add(self, evaluation: str, items: Iterable[Any]) -> None:
    """Adds a set: texts, or records whose texts all count."""
    for number, item in enumerate(items):
      self.items[evaluation] = number + 1
      texts = [words for text in strings(item) if len(words := words_of(text)) >= self._min]
      if not texts:
        self.unchecked.setdefault(evaluation, []).append(number)
      for words in texts:
        n = min(self._n, len(words))
        grams = self._grams.setdefault(n, {})
        for gram in _ngrams(words, n):
          grams.setdefault(gram, (evaluation, number))

  def match(self, record: Any) -> Match | None:
    """The first overlap of a record's texts with an item, longest n-grams first."""
    texts = [words_of(text) for text in strings(record)]
    for n in sorted(self._grams, reverse=True):
      grams = self._grams[n]
      for words in texts:
        for gram in _ngrams(words, n):
          if gram in grams:
            return Match(*grams[gram], gram)
    return None


class Decontaminated:
  """A source without the records that overlap an evaluation item.

  Making it reads the source once, a record at a time; of those kept only the numbers stay in
  memory.

  Attributes:
    dropped: {number of the record: its match}.
  """

  def __init__(self, records: RandomAccess, index: EvaluationIndex):
    self._records = records
    matches = ((i, index.match(records[i])) for i in range(len(records)))
    self.dropped = {i: match for i, match in matches if match is not None}
    kept = np.ones(len(records), bool)
    kept[list(self.dropped)] = False
    self._kept = np.flatnonzero(kept)

  def __len__(self) -> int:
    return len(self._kept)

  def __getitem__(self, index: int) -> Record:
    if not 0 <= index < len(self):
      raise IndexError(f"record {index} of {len(self)}")
    return self._records[int(self._kept[index])]

  def __repr__(self) -> str:
    return f"Decontaminated({self._records!r}, {len(self.dropped)} dropped)"


def write_report(
  path: pathlib.Path, config: DecontaminationConfig, index: EvaluationIndex,
  sources: Mapping[str, Decontaminated],
) -> None:  # fmt: skip
  """Writes what was dropped, and because of which evaluation item, as JSON."""
  report = {
    "n": config.n,
    "min_words": config.min_words,
    "evaluation": {
      name: {"items": count, "too_short": index.unchecked.get(name, [])}
      for name, count in index.items.items()
    },
    "sources": {
      name: {
        "records": len(source) + len(source.dropped),
        "dropped": [{"record": i, **m._asdict()} for i, m in source.dropped.items()],
      }
      for name, source in sources.items()
    },
  }
  path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
