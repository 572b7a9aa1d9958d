"""Answer extraction, format, scoring and configuration errors of the arithmetic domain."""

import asyncio

import pytest

from ptjax.core.types import Outcome
from ptjax.domains import arithmetic
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services, Task

DOMAIN = arithmetic.build()


def task_with(answer):
  return Task("arithmetic", 0, "train", (), {"entry": {"answer": answer}})


def grade(answer, response, domain=DOMAIN):
  return asyncio.run(grade_response(domain, task_with(answer), response, Services()))


@pytest.mark.parametrize(
  ("response", "answer"),
  [
    ("5", "5"),
    ("-5", "-5"),
    ("The result is 12.", "12"),
    ("3 + 4 = 7", "7"),
    ("8-5", "5"),
    ("8 - 15 = -7", "-7"),
    ("(2)-3", "3"),
    ("x=-3", "-3"),
    ("1,234", "1,234"),
    ("2.50", "2.50"),
    ("no number", None),
    ("", None),
  ],
)
def test_extract_answer(response, answer):
  assert arithmetic.extract_answer(response) == answer


@pytest.mark.parametrize(
  ("answer", "response", "root", "passed"),
  [
    ("5", "2 + 3 = 5", 1.0, True),
    ("-5", "The sum is:\n-2 - 3 = -5.\n", 1.0, True),
    ("5", "5", 0.7, True),
    ("5", "2 + 3 = 5, so 5", 0.7, True),
    ("5", "2 + 3 = 4", 0.3, False),
    ("5", "= -5", 0.3, False),
    ("5", "15", 0.0, False),
    ("5", "four", 0.0, False),
    ("5", "", 0.0, False),
  ],
)
def test_rewards(answer, response, root, passed):
  graded = grade(answer, response)
  assert graded.outcome is Outcome.SCORED
  assert graded.rewards[""] == pytest.approx(root)
  assert graded.passed is passed


def test_the_bare_form_wants_nothing_but_the_number():
  domain = arithmetic.build(arithmetic.Config(form="bare"))
  assert grade("5", "5.", domain).rewards["general/format"] == 1.0
  assert grade("5", "2 + 3 = 5", domain).rewards["general/format"] == 0.0


def test_partial_credit_is_the_scorers_own():
  domain = arithmetic.build(arithmetic.Config(partial_credit=True))
  assert grade("5", "15", domain).rewards["domain/answer"] == 0.5
  assert not grade("5", "15", domain).passed


def test_question_ends_with_the_instruction():
  task = DOMAIN.make_task(3, "train")
  assert task.messages[0]["content"].endswith(" =\nWrite the sum and its result.")


def test_configuration_errors():
  with pytest.raises(ValueError, match="form 'final' is unknown; use bare or equation"):
    arithmetic.Config(form="final")
  with pytest.raises(ValueError, match="no generator 'chain_sums'"):
    arithmetic.build(arithmetic.Config(generator="chain_sums"))
  with pytest.raises(ValueError, match="refuses"):
    arithmetic.build(arithmetic.Config(parameters={"min_terms": 3, "max_terms": 2}))
  with pytest.raises(ValueError, match="refuses"):
    arithmetic.build(arithmetic.Config(parameters={"terms": 3}))
