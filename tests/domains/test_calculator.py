"""The domain of word problems with tools, and the expressions of its calculator."""

import asyncio
import dataclasses
from fractions import Fraction

import pytest

from ptjax.core.types import Outcome
from ptjax.domains import admission, calculator, catalog
from ptjax.domains.domain import grade, grade_answer, grade_response, play_answer
from ptjax.domains.expressions import ExpressionError, evaluate, written
from ptjax.envs.environment import Services
from ptjax.envs.tool_formats import FORMATS
from ptjax.envs.tools import ToolCall

DOMAIN = calculator.build()
TASK = DOMAIN.make_task(3, "train")


def graded(answer, task=TASK):
  return asyncio.run(grade_answer(DOMAIN, task, answer, Services()))


def test_admitted():
  seen = asyncio.run(admission.examine(catalog.builder("calculator")(), range(6), Services()))
  assert seen.findings == ()
  assert seen.guessed == 0


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_the_oracle_plays_in_every_format(form):
  episode = asyncio.run(play_answer(DOMAIN, TASK, DOMAIN.oracle(TASK), Services(), form))
  needed = TASK.data["needed"]
  assert episode.calls == {"run": len(needed) + 1}
  for name, shown in zip(needed, episode.observations, strict=False):
    assert shown == f"{name}: {TASK.data['prices'][name]} a piece"
  assert asyncio.run(grade(DOMAIN, TASK, episode, Services())).passed


def test_every_form_is_asked():
  texts = [DOMAIN.make_task(seed, "train").data["expression"] for seed in range(60)]
  shapes = {tuple(c for c in text if c in "+-*/()") for text in texts}
  assert len(shapes) == len(calculator.FORMS)


def test_the_right_number_without_its_prices_earns_nothing():
  *_, last = DOMAIN.oracle(TASK)
  assert graded(last).rewards["domain"] == 0
  assert len(TASK.data["needed"]) == 3
  one = ToolCall("look_up", {"item": TASK.data["needed"][0]})
  seen = graded((one, last))
  assert (seen.rewards["domain/looked_up"], seen.rewards["domain"]) == (pytest.approx(1 / 3), 0)
  assert not seen.passed


@pytest.mark.parametrize("wrong", ["0.01", "-0.01"])
def test_a_cent_is_wrong(wrong):
  *calls, _ = DOMAIN.oracle(TASK)
  right = float(TASK.data["right"])
  answer = (*calls, f"Answer: {right + float(wrong):.2f}")
  assert graded(answer).rewards["domain"] == 0
  assert graded((*calls, f"So it is.\nAnswer: {right:.3f}")).passed


def test_a_spent_budget_is_scored_as_what_it_is():
  call = ToolCall("look_up", {"item": TASK.data["needed"][0]})
  got = graded((call,) * 20)
  assert (got.outcome, got.passed) == (Outcome.TRUNCATED, False)
  assert got.rewards["general/format"] == 0.5


def test_a_malformed_call_costs_half_of_the_format():
  *calls, last = DOMAIN.oracle(TASK)
  got = graded((*calls, "<tool_call>{</tool_call>", last))
  assert (got.rewards["domain"], got.rewards["general"]) == (1, 0.5)


def test_a_bare_response_cannot_be_graded_as_an_episode():
  with pytest.raises(ValueError, match=r"leaf format grades episodes, and got a bare response"):
    asyncio.run(grade_response(DOMAIN, TASK, "Answer: 1", Services()))


def test_answers_of_turns_are_for_episodes_of_turns():
  addends = catalog.builder("addends")()
  task = addends.make_task(0, "train")
  with pytest.raises(ValueError, match="of domain addends have one turn, the answer has 2"):
    asyncio.run(grade_answer(addends, task, ("1", "2"), Services()))
  with pytest.raises(ValueError, match="the answer calls 'shell'; there is look_up, calculate"):
    graded((ToolCall("shell", {"command": "id"}),))


def test_admission_refuses_episodes_that_differ_when_played_again():
  count = iter(range(1000))

  async def drifting(ctx, arguments):
    return f"{next(count)}"

  drift = dataclasses.replace(calculator.TOOLS[1], run=drifting)
  play = dataclasses.replace(DOMAIN.play, tools=(calculator.TOOLS[0], drift))
  found = asyncio.run(
    admission.admit(dataclasses.replace(DOMAIN, play=play, attacks=()), [0], Services())
  )
  assert found
  assert all(" and then " in f.fault for f in found)


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("1+2*3", Fraction(7)),
    (" ( 1 + 2 ) * 3 ", Fraction(9)),
    ("10/4/5", Fraction(1, 2)),
    ("2-3-4", Fraction(-5)),
    ("--2*-3", Fraction(-6)),
    ("0.1+0.2", Fraction(3, 10)),
  ],
)
def test_expressions(text, value):
  assert evaluate(text) == value


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "ends where a number"),
    ("1+", "ends where a number"),
    ("1 2", "expected an operator, found '2'"),
    ("(1", "expected '\\)', found 'the end'"),
    ("1/(2-2)", "division by zero"),
    ("2**3", "expected a number or a bracket, found '\\*'"),
    ("1e3", "'e3' at character 1"),
    (".5", "'.5' at character 0"),
    ("1,000", "',000' at character 1"),
    ("٣", "at character 0"),
    ("(" * 30 + "1" + ")" * 30, "nested deeper than 20"),
    ("-" * 30 + "1", "nested deeper than 20"),
    ("1" * 201, "201 characters; write at most 200"),
  ],
)
def test_what_is_no_expression(text, message):
  with pytest.raises(ExpressionError, match=message):
    evaluate(text)


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (Fraction(1, 3), "0.333333"),
    (Fraction(-5, 2), "-2.5"),
    (Fraction(700), "700"),
    (Fraction(-1, 10**9), "0"),
    (Fraction(1999999999, 10**9), "2"),
  ],
)
def test_written(value, text):
  assert written(value) == text
