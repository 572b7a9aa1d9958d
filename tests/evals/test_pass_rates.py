"""Pass rates: what counts, and the interval."""

import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Grade
from ptjax.envs.environment import Episode, Task
from ptjax.evals.heldout import EvalConfig, PassRate, pass_rates
from ptjax.experience.collect import EpisodeSpec, Played

EPISODE = Episode(
  tokens=np.asarray([1, 2], np.int32),
  action_mask=np.asarray([False, True]),
  behavior_logprobs=np.asarray([0, -1], np.float32),
  policy_versions=np.asarray([-1, 0], np.int32),
  turn_starts=(0, 1),
  responses=("x",),
  finish_reason=FinishReason.STOP,
)


def played(domain: str, outcome: Outcome, passed: bool = False, *, score: bool = True) -> Played:
  task = Task(domain, 0, "heldout", ({"role": "user", "content": "?"},), {})
  grade = Grade(outcome, {"": float(passed)} if score else {}, passed)
  return Played(EpisodeSpec(task, group=0, index=0), EPISODE, grade)


def test_counts_by_domain_then_all():
  results = [
    played("code", Outcome.SCORED, True),
    played("code", Outcome.SCORED, False),
    played("arithmetic", Outcome.SCORED, True),
    played("code", Outcome.TRUNCATED, True),
  ]
  assert pass_rates(results) == [
    PassRate("code", passed=2, total=3),
    PassRate("arithmetic", passed=1, total=1),
    PassRate("all", passed=3, total=4),
  ]


@pytest.mark.parametrize(
  "outcome", [Outcome.INFRA_FAILED, Outcome.UNSCORABLE, Outcome.CANCELLED, Outcome.TRUNCATED]
)
def test_an_episode_without_a_score_is_no_failure(outcome):
  results = [played("code", Outcome.SCORED, True), played("code", outcome, score=False)]
  assert pass_rates(results) == [PassRate("code", 1, 1), PassRate("all", 1, 1)]


def test_a_domain_whose_episodes_all_failed_is_still_listed():
  results = [
    played("code", Outcome.INFRA_FAILED, score=False),
    played("arithmetic", Outcome.SCORED, True),
  ]
  code, arithmetic, everything = pass_rates(results)
  assert code == PassRate("code", 0, 0)
  assert np.isnan(code.rate)
  assert (arithmetic.total, everything.total) == (1, 1)
  # The table of the terminal and the report show an interval for every domain.
  assert np.isnan(code.interval).all()


@pytest.mark.parametrize(
  ("passed", "total", "interval"),
  [
    (8, 10, (0.4901625, 0.9433178)),
    (0, 8, (0.0, 0.3244077)),  # z² / (n + z²)
    (8, 8, (0.6755923, 1.0)),
    (50, 100, (0.4038315, 0.5961685)),
  ],
)
def test_wilson_interval(passed, total, interval):
  rate = PassRate("code", passed, total)
  assert rate.rate == passed / total
  assert rate.interval == pytest.approx(interval, abs=1e-6)


def test_negative_task_counts_are_refused():
  with pytest.raises(ValueError, match="tasks_per_domain -1"):
    EvalConfig(tasks_per_domain=-1)
