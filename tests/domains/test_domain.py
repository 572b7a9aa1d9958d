"""The boundary at which scoring failures and finish reasons become typed outcomes."""

import asyncio
import dataclasses

import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Domain, grade
from ptjax.envs.environment import Generation, Services, Task, Transcript
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure, Unscorable

TASK = Task("toy", 0, "train", (), {})


def episode(finish_reason, text="yes"):
  transcript = Transcript()
  one = np.zeros(1, np.int32)
  transcript.act(Generation(one, one.astype(np.float32), one, text, finish_reason))
  return transcript.episode()


def toy(grader, **changes):
  domain = Domain(
    name="toy",
    family="toy",
    license="Apache-2.0",
    source="test",
    make_task=lambda seed, split: TASK,
    rewards=tree.general_domain(tree.Leaf("general", lambda *_: 1.0), tree.Leaf("domain", grader)),
    passed=lambda rewards: rewards["domain"] == 1.0,
    oracle=lambda task: "yes",
  )
  return dataclasses.replace(domain, **changes)


def raising(failure):
  def grader(*_):
    raise failure

  return grader


def graded(domain, finish_reason=FinishReason.STOP):
  return asyncio.run(grade(domain, TASK, episode(finish_reason), Services()))


def test_scored():
  got = graded(toy(lambda task, response, services: float(response == "yes")))
  assert (got.outcome, got.passed, got.rewards[""]) == (Outcome.SCORED, True, 1.0)


def test_truncated_answer_is_scored_where_the_domain_says_so():
  got = graded(toy(lambda *_: 0.5), FinishReason.LENGTH)
  assert (got.outcome, got.passed) == (Outcome.TRUNCATED, False)
  assert got.rewards[""] == pytest.approx(0.65)
  got = graded(toy(lambda *_: 1.0, score_truncated=False), FinishReason.LENGTH)
  assert (got.outcome, got.passed, got.rewards) == (Outcome.TRUNCATED, False, {})


def test_cancellation_is_no_score():
  got = graded(toy(lambda *_: 1.0), FinishReason.CANCELLED)
  assert (got.outcome, got.passed, got.rewards) == (Outcome.CANCELLED, False, {})


@pytest.mark.parametrize(
  ("grader", "outcome", "detail"),
  [
    (raising(InfraFailure("box lost")), Outcome.INFRA_FAILED, "box lost"),
    (raising(Unscorable("ambiguous")), Outcome.UNSCORABLE, "ambiguous"),
    (lambda *_: None, Outcome.UNSCORABLE, "domain has no verdict"),
    (lambda *_: float("nan"), Outcome.UNSCORABLE, "domain is not finite"),
    (lambda *_: 1.01, Outcome.UNSCORABLE, "domain is out of range"),
  ],
)
@pytest.mark.parametrize("finish_reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_failures_never_become_a_number(grader, outcome, detail, finish_reason):
  got = graded(toy(grader), finish_reason)
  assert got.outcome is outcome
  assert not got.passed
  assert "" not in got.rewards
  assert detail in got.detail
