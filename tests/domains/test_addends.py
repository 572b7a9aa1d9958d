"""What an answer of the domain is, by hand."""

import pytest

from ptjax.domains import addends
from ptjax.envs.environment import Services, Task


@pytest.mark.parametrize(
  ("response", "score"),
  [
    ("31+26", 1.0),
    ("47+10", 1.0),
    ("31+26...!", 1.0),  # what follows does not count
    ("31+26 31+27", 1.0),
    ("31+25", 0.0),
    ("31+261", 0.0),  # the second number has three digits
    (" 31+26", 0.0),
    ("57+00", 0.0),  # not a two-digit number
    ("48+09", 0.0),
    ("57", 0.0),
    ("", 0.0),
  ],
)
def test_score(response, score):
  task = Task("addends", 0, "train", ({"role": "user", "content": "57"},), {"sum": 57})
  assert addends.grade_answer(task, response, Services()) == score


def test_sums_have_two_or_three_digits_and_an_answer():
  for seed in range(300):
    task = addends.make_task(seed, "train")
    assert 20 <= task.data["sum"] <= 198
    assert task.messages == ({"role": "user", "content": str(task.data["sum"])},)
    assert sum(addends.parse_answer(addends.oracle(task))) == task.data["sum"]
