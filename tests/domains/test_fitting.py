"""Tasks that are too long are replaced by others of the domain."""

import dataclasses

import pytest

from ptjax.domains.catalog import builder
from ptjax.domains.fitting import fitting


def length(messages):
  return sum(len(m["content"]) for m in messages)


@pytest.fixture(scope="module")
def domain():
  return builder("reasoning/word_sorting")()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_short_tasks_stay_and_long_ones_are_replaced(domain, split):
  lengths = sorted(length(domain.make_task(seed, split).messages) for seed in range(40))
  limit = lengths[20]
  short = fitting(domain, length, limit)
  replaced = 0
  for seed in range(40):
    task, was = short.make_task(seed, split), domain.make_task(seed, split)
    assert length(task.messages) <= limit
    assert task == short.make_task(seed, split)
    assert (task == was) == (length(was.messages) <= limit)
    replaced += task != was
  assert 5 < replaced < 35


def test_none_fits(domain):
  short = fitting(domain, length, 10)
  with pytest.raises(ValueError, match=r"word_sorting: the shortest of 100 prompts has \d+ tokens"):
    short.make_task(0, "train")


def test_all_else_stays(domain):
  short = fitting(domain, length, 1000)
  assert dataclasses.replace(short, make_task=domain.make_task) == domain
