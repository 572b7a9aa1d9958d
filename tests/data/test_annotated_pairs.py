"""The schema of annotated comparisons: what a line must hold, and how errors read."""

import json

import pytest

from ptjax.data.annotated_pairs import read_pairs

GOOD = {
  "messages": [{"role": "user", "content": "2+2?"}],
  "chosen": "4",
  "rejected": "5",
  "annotator": "a17",
  "license": "CC-BY-4.0",
  "source": "unit test",
  "domain": "arithmetic",
}


def write(path, *records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


def test_a_good_file(tmp_path):
  licensed = GOOD | {"license": "(GPL-3.0-only OR MIT) AND CC-BY-4.0", "margin": 2}
  first, second = read_pairs(write(tmp_path / "p.jsonl", GOOD, licensed))
  assert (first.chosen, first.rejected, first.margin) == ("4", "5", 0.0)
  assert (first.annotator, first.domain) == ("a17", "arithmetic")
  assert second.margin == 2.0


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"annotator": None}, "annotator must be a text"),
    ({"license": ""}, "license must be a text"),
    ({"license": "free for all"}, "not an SPDX expression"),
    ({"license": "CC-BY-NC-4.0"}, "does not allow"),
    ({"source": 7}, "source must be a text"),
    ({"domain": " "}, "domain must be a text"),
    ({"chosen": None}, "chosen must be a text, not None; only KTO"),
    ({"rejected": "4"}, "same text"),
    ({"margin": -1}, "margin must be a number >= 0, not -1"),
    ({"margin": float("nan")}, "margin must be a number >= 0, not nan"),
    ({"margin": True}, "margin"),
    ({"messages": "2+2?"}, "messages: needs a list"),
    ({"marign": 1}, "unknown field 'marign'"),
  ],
)
def test_one_clear_error_with_the_line(tmp_path, change, words):
  path = write(tmp_path / "p.jsonl", GOOD, GOOD | change)
  with pytest.raises(ValueError, match=words) as error:
    read_pairs(path)
  assert str(error.value).startswith(f"{path}, line 2")
  assert "\n" not in str(error.value)


def test_single_answers_where_they_are_allowed(tmp_path):
  path = write(tmp_path / "p.jsonl", GOOD | {"chosen": None}, GOOD | {"rejected": None})
  pairs = read_pairs(path, unpaired=True)
  assert [(p.chosen, p.rejected) for p in pairs] == [(None, "5"), ("4", None)]
  neither = write(tmp_path / "n.jsonl", GOOD | {"chosen": None, "rejected": None})
  with pytest.raises(ValueError, match="line 1: neither"):
    read_pairs(neither, unpaired=True)
