"""Planted evaluation items are found under changes of case and punctuation, clean text is kept."""

import json

import numpy as np
import pytest

from ptjax.data.decontamination import (
  Decontaminated,
  DecontaminationConfig,
  EvaluationIndex,
  write_report,
)

RNG = np.random.default_rng(0)
VOCABULARY = ["".join(RNG.choice(list("abcdefgh"), 6)) for _ in range(2000)]


def text(words: int) -> str:
  return " ".join(RNG.choice(VOCABULARY, words))


def conversation(content: str) -> dict:
  return {"messages": [{"role": "user", "content": content}]}


def test_recall_and_precision_on_planted_items():
  """300 records of 200 words; 60 hold 13 to 40 words of an item, changed as people change them."""
  items = [text(40) for _ in range(50)]
  index = EvaluationIndex()
  index.add("bench", items)
  records, planted = [], {}
  for i in range(300):
    words = text(200).split()
    if i % 5 == 0:
      item, length = int(RNG.integers(50)), int(RNG.integers(13, 41))
      start = int(RNG.integers(0, 41 - length))
      copied = items[item].split()[start : start + length]
      words[100:100] = [w.upper() + ("," if j % 3 else "\n-") for j, w in enumerate(copied)]
      planted[i] = item
    elif i % 5 == 1:  # 12 words are an overlap too short
      words[100:112] = items[i % 50].split()[:12]
    records.append(conversation(" ".join(words)))
  source = Decontaminated(records, index)
  assert {i: match.item for i, match in source.dropped.items()} == planted
  assert len(source) == 240
  assert [source[i] for i in range(240)] == [r for i, r in enumerate(records) if i not in planted]


def test_n_is_a_choice():
  item = "one two three four five six seven eight nine ten"
  record = conversation("zero one two three four five zero")
  for n, found in ((5, True), (6, False)):
    index = EvaluationIndex(n, min_words=3)
    index.add("e", [item])
    assert (index.match(record) is not None) == found
  index = EvaluationIndex(5, min_words=3)
  index.add("e", ["x", item])
  assert index.match(record) == ("e", 1, "one two three four five")


def test_short_items_are_compared_whole_or_counted():
  index = EvaluationIndex(13, min_words=8)
  index.add("e", [{"id": "e/0", "q": "What is the sum of 2, 3 and 4?"}, "too short to tell"])
  assert index.unchecked == {"e": [1]}
  assert index.match("he asked: what IS the sum of 2 3 and 4 ... and so on").item == 0
  assert index.match("what is the sum of 2 3 and 5") is None


def test_normalisation_is_unicode():
  index = EvaluationIndex(3, min_words=3)
  index.add("e", ["Straße in \uff21\uff22 größer"])
  assert index.match("STRASSE, in ab") is not None


def test_overlaps_do_not_cross_texts():
  index = EvaluationIndex(4, min_words=4)
  index.add("e", ["a b c d"])
  assert index.match({"x": "a b", "y": ["c d"]}) is None
  assert index.match({"x": {"y": ["- a b c d -"]}}) is not None


def test_report(tmp_path):
  config = DecontaminationConfig(("bench.jsonl",), n=3, min_words=3)
  index = EvaluationIndex(config.n, config.min_words)
  index.add("bench.jsonl", ["x", "a b c"])
  source = Decontaminated([conversation("q"), conversation("A b, c d")], index)
  write_report(tmp_path / "r.json", config, index, {"mine": source})
  assert json.loads((tmp_path / "r.json").read_text()) == {
    "n": 3,
    "min_words": 3,
    "evaluation": {"bench.jsonl": {"items": 2, "too_short": [0]}},
    "sources": {
      "mine": {
        "records": 2,
        "dropped": [{"record": 1, "evaluation": "bench.jsonl", "item": 1, "words": "a b c"}],
      }
    },
  }
  with pytest.raises(IndexError, match="record 1 of 1"):
    source[1]


def test_impossible_configurations():
  with pytest.raises(ValueError, match="names no file"):
    DecontaminationConfig(())
  with pytest.raises(ValueError, match="min_words 9 must be from 1 to n, which is 8"):
    DecontaminationConfig(("e.jsonl",), n=8, min_words=9)
