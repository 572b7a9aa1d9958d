"""The record of a step, by hand."""

import numpy as np
import pytest
from train_toys import toy_trajectory

from ptjax.core.metrics import summarize
from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Grade
from ptjax.envs.environment import Episode, Task
from ptjax.experience.collect import EpisodeSpec, Played
from ptjax.train.batch import Batch, first_of_groups
from ptjax.train.telemetry import batch_metrics, kl_metric, rollout_metrics


def two_actions() -> Batch:
  """Advantages 1 and -3; the sampler reported log-prob -3 for both."""
  trajectories = [toy_trajectory(np.arange(4), np.arange(2), group=0, reward=1.0)]
  return Batch(trajectories, [np.asarray([1, -3], np.float32)])


def test_advantages():
  metrics = summarize(batch_metrics(two_actions()))
  assert metrics == {
    "advantage/mean": -1.0,
    "advantage/std": pytest.approx(8**0.5),
    "advantage/min": -3.0,
    "advantage/max": 1.0,
  }


@pytest.mark.parametrize(
  ("reference", "kl"),
  [
    ([-3, -3], 0.0),
    # r = reference / policy = 1/2: r - 1 - ln r, for one of two tokens.
    ([-3 - np.log(2), -3], (0.5 - 1 + np.log(2)) / 2),
  ],
)
def test_kl_to_the_reference(reference, kl):
  metric = kl_metric(two_actions().trajectories, [np.asarray(reference, np.float32)])
  assert float(metric.compute()) == pytest.approx(kl, abs=1e-6)


def test_the_kl_may_be_measured_on_some_episodes_of_each_group():
  groups = (5, 5, 7, 5, 7, 7)
  trajectories = [toy_trajectory(np.arange(4), np.arange(2), g, reward=0.0) for g in groups]
  assert first_of_groups(trajectories, 2) == [0, 1, 2, 4]
  assert first_of_groups(trajectories, None) == [0, 1, 2, 3, 4, 5]


def test_the_critic_is_measured_on_returns():
  batch = two_actions()
  batch = Batch(
    batch.trajectories,
    batch.advantages,
    old_values=[np.asarray([0.0, 1.0], np.float32)],
    returns=[np.asarray([0.0, 2.0], np.float32)],
  )
  metrics = summarize(batch_metrics(batch))
  # Residuals 0 and 1 against returns 0 and 2: 1 - (1/4) / 1.
  assert metrics["value/explained_variance"] == pytest.approx(0.75)
  assert metrics["value/return_mean"] == 1.0


def played(length: int, outcome: Outcome, passed: bool) -> Played:
  """An episode of so many sampled tokens."""
  t = toy_trajectory(np.arange(4), np.arange(length), group=0, reward=0.0)
  episode = Episode(
    t.tokens, t.action_mask, t.behavior_logprobs, t.policy_versions, (0,), ("",), FinishReason.STOP
  )
  rewards = {"": float(passed)} if outcome is Outcome.SCORED else {}
  task = Task("toy", 0, "train", ({"role": "user", "content": "1"},), {})
  return Played(EpisodeSpec(task, 0, 0), episode, Grade(outcome, rewards, passed))


def test_lengths_by_verdict():
  """Right: 2 and 4 tokens; wrong: 7; what nobody could grade is neither."""
  episodes = [
    played(2, Outcome.SCORED, True),
    played(4, Outcome.SCORED, True),
    played(7, Outcome.SCORED, False),
    played(9, Outcome.UNSCORABLE, False),
  ]
  metrics = summarize(rollout_metrics(episodes))
  assert (metrics["length/passed"], metrics["length/failed"]) == (3.0, 7.0)
  assert metrics["length/mean"] == 5.5
  assert np.isnan(summarize(rollout_metrics(episodes[:2]))["length/failed"])
