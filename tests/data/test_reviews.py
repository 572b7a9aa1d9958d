"""The review queue: verdicts, and the preferences that they become."""

import pytest

from ptjax.core.metrics import write_jsonl
from ptjax.data.annotated_pairs import read_pairs
from ptjax.data.reviews import add_verdict, read_queue, write_preferences


@pytest.fixture
def workdir(tmp_path):
  records = [
    {
      "id": key, "step": 9, "why": "random", "oddness": 0.1, "domain": "code", "license": "MIT",
      "messages": [{"role": "user", "content": question}], "response": answer, "reward": 1.0,
    }
    for key, question, answer in [
      ("9.0", "a", "good a"), ("9.1", "a", "bad a"), ("9.2", "b", "bad b"), ("9.3", "c", "c"),
    ]
  ]  # fmt: skip
  write_jsonl(tmp_path / "review.jsonl", records)
  return tmp_path


def test_good_and_bad_answers_to_one_question_are_a_pair(workdir):
  for key, good in (("9.0", False), ("9.0", True), ("9.1", False), ("9.2", False)):
    add_verdict(workdir, key, good=good, annotator="a17")
  assert [r["verdict"] and r["verdict"]["good"] for r in read_queue(workdir)] == [
    True, False, False, None,
  ]  # fmt: skip
  assert write_preferences(workdir, workdir / "pairs.jsonl") == 2
  pair, single = read_pairs(workdir / "pairs.jsonl", unpaired=True)
  assert (pair.chosen, pair.rejected, pair.license) == ("good a", "bad a", "MIT")
  assert (single.chosen, single.rejected, single.annotator) == (None, "bad b", "a17")


def test_errors(workdir, tmp_path):
  with pytest.raises(ValueError, match=r"no answer '1\.0' in the review queue; it has 9\.0, 9\.1"):
    add_verdict(workdir, "1.0", good=True, annotator="a17")
  with pytest.raises(ValueError, match="annotator"):
    add_verdict(workdir, "9.0", good=True, annotator="")
  with pytest.raises(ValueError, match="no verdict in"):
    write_preferences(workdir, workdir / "pairs.jsonl")
