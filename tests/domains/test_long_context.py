"""The training domains over long texts are admitted, and cannot be gamed by naming everything."""

import asyncio
import re

import pytest

from ptjax.domains import admission, long_context
from ptjax.domains.domain import grade_response
from ptjax.domains.long_context import Config
from ptjax.envs.environment import Services


@pytest.mark.parametrize("name", long_context.DOMAINS)
def test_admitted(name):
  domain = long_context.DOMAINS[name]()
  assert asyncio.run(admission.admit(domain, range(3), Services())) == []
  assert domain.name == name
  assert domain.family == name.partition("/")[0]


def graded(domain, task, response):
  return asyncio.run(grade_response(domain, task, response, Services()))


@pytest.mark.parametrize(
  ("name", "most"),
  [
    ("ruler/niah_multikey_2", 0.05),
    ("ruler/vt", 0.5),  # half of the names in the text are those of the solved example
    ("ruler/cwe", 0.1),
    ("ruler/qa_1", 0.1),
  ],
)
def test_naming_everything_earns_little(name, most):
  domain = long_context.DOMAINS[name]()
  task = domain.make_task(1, "train")
  grade = graded(domain, task, task.messages[0]["content"])
  assert not grade.passed
  assert grade.rewards["domain/answer"] <= most
  assert grade.rewards["general/brief"] == 0.0


def test_a_filing_is_graded_by_its_number():
  domain = long_context.DOMAINS["filings"]()
  task = domain.make_task(0, "train")
  (answer,) = task.data["answers"]
  assert graded(domain, task, f"It is {answer}.").passed
  assert not graded(domain, task, f"It is {answer}, no, 5 crowns.").passed


def test_part_of_the_answers_earns_part():
  domain = long_context.DOMAINS["ruler/niah_multivalue"]()
  task = domain.make_task(0, "train")
  grade = graded(domain, task, task.data["answers"][0])
  assert grade.rewards["domain/answer"] == 0.25
  assert not grade.passed


def test_the_control_tells_its_answer_and_fits_its_room():
  domain = long_context.build(Config("needle/control", tokens=2000))
  task = domain.make_task(0, "train")
  prompt = task.messages[0]["content"]
  (answer,) = task.data["answers"]
  assert re.search(rf"again: .* is {answer}\.\)$", prompt)
  assert long_context.estimate(prompt, "") + 128 <= 2000


def test_levels_double_the_length():
  lengths = []
  for level in (1, 2, 3):
    task = long_context.build(level=level).make_task(0, "train")
    lengths.append(task.data["tokens"] / 2**level)
  assert lengths == pytest.approx([lengths[-1]] * 3, rel=0.25)
  with pytest.raises(ValueError, match="level 0 of needle must be 1 or more"):
    long_context.build(level=0)
  with pytest.raises(ValueError, match="task 'hay' is unknown; use one of needle,"):
    Config("hay")


def test_held_out_questions_are_not_trained_on():
  domain = long_context.build()
  answers = {
    split: {domain.make_task(seed, split).data["answers"] for seed in range(20)}
    for split in ("train", "heldout")
  }
  assert not answers["train"] & answers["heldout"]
