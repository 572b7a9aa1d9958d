"""From episodes to advantages: KL and length in the reward, lambdas, turns, truncation, parts."""

import dataclasses

import numpy as np
import pytest
from train_toys import toy_trajectory

from ptjax.algos.advantages import rloo
from ptjax.core.types import FinishReason, Outcome
from ptjax.rewards.parts import root_parts
from ptjax.rewards.shaping import ShapingConfig
from ptjax.rewards.tree import Child, Gate, Leaf, Node, RewardTree
from ptjax.train import estimate
from ptjax.train.experiment import CriticConfig, RLConfig
from ptjax.train.objectives import PolicyObjective


def episode(length: int, reward: float, group: int = 0, **changes):
  return dataclasses.replace(
    toy_trajectory(np.arange(4), np.arange(length), group, reward), **changes
  )


def in_reward(estimator=None) -> RLConfig:
  objective = PolicyObjective(kl_coef=0.5, kl_place="reward", kl_estimator=estimator)
  return RLConfig(objective=objective, reference=True)


def test_the_kl_in_the_reward_is_of_the_policy_that_drew_the_tokens():
  """The sampler reported -3 for every token; reference -4 and -2.5: k1 is 1 and -0.5."""
  reference = [np.array([-4.0, -2.5], np.float32), np.array([-3.0], np.float32)]
  episodes = [episode(2, 1.0), episode(1, 0.0)]
  got = estimate.kl_penalties(episodes, reference, in_reward())
  np.testing.assert_allclose(np.concatenate(got), [0.5, -0.25, 0.0], rtol=1e-6)
  got = estimate.kl_penalties(episodes, reference, in_reward("k3"))
  k3 = 0.5 * np.array([np.exp(-1) - 1 + 1, np.exp(0.5) - 1 - 0.5, 0])
  np.testing.assert_allclose(np.concatenate(got), k3, rtol=1e-5, atol=1e-7)


def test_token_returns_hold_the_penalties_that_follow():
  """Penalties 0.2 and 0.1 and a reward of 1: returns 0.7 and 0.9, of the other episode 0."""
  episodes = [episode(2, 1.0), episode(1, 0.0)]
  penalties = [np.array([0.2, 0.1], np.float32), np.zeros(1, np.float32)]
  got = estimate.token_return_advantages(episodes, [1.0, 0.0], penalties, 1.0)
  returns = np.array([0.7, 0.9, 0.0])
  whitened = (returns - returns.mean()) / returns.std(ddof=1)
  np.testing.assert_allclose(np.concatenate(got), whitened, rtol=1e-5)
  assert [len(x) for x in got] == [2, 1]


def test_the_reward_of_gae_takes_penalties_at_their_tokens():
  episodes, values = [episode(2, 1.0)], [np.array([0.5, 0.25], np.float32)]
  penalties = [np.array([0.2, 0.1], np.float32)]
  advantages, returns = estimate.critic_advantages(
    episodes, values, CriticConfig(), None, penalties
  )
  np.testing.assert_allclose(returns[0], [0.7, 0.9], rtol=1e-6)
  np.testing.assert_allclose(advantages[0], [0.2, 0.65], rtol=1e-6)


def test_shaping_reads_lengths_and_the_raw_verdict():
  """Limit 8, buffer 4: 6 tokens lose (4 - 6) / 4. Bonus: 0.5 - (n - 2) / 4, not for the wrong."""
  episodes = [episode(2, 1.0, passed=True), episode(6, 1.0, passed=True), episode(2, 0.0)]
  config = RLConfig(shaping=ShapingConfig(overlong_buffer=4, length_bonus=0.2))
  got = estimate.outcome_rewards(episodes, config, max_new_tokens=8)
  np.testing.assert_allclose(got, [1 + 0.1, 1 - 0.5 - 0.1, 0.0], atol=1e-12)
  assert estimate.outcome_rewards(episodes, RLConfig(), 8) == [1.0, 1.0, 0.0]


VALUES = np.array([0.5, 0.2, 0.1], np.float32)


def test_decoupled_lambda():
  """Targets by lambda 1 are the return; advantages by lambda 0 are the temporal differences."""
  advantages, returns = estimate.critic_advantages(
    [episode(3, 1.0)], [VALUES], CriticConfig(lam=1.0, lam_policy=0.0)
  )
  np.testing.assert_allclose(advantages[0], [-0.3, -0.1, 0.9], rtol=1e-5)
  np.testing.assert_allclose(returns[0], [1, 1, 1], rtol=1e-6)


def test_lambda_of_the_length():
  """alpha 0.5: answers of 3 and of 1 action have lambda 1/3 and 0 (clipped from -1)."""
  episodes, values = [episode(3, 1.0), episode(1, 1.0)], [VALUES, VALUES[:1]]
  advantages, returns = estimate.critic_advantages(episodes, values, CriticConfig(lam_alpha=0.5))
  last = 0.9
  middle = -0.1 + last / 3
  np.testing.assert_allclose(advantages[0], [-0.3 + middle / 3, middle, last], rtol=1e-5)
  np.testing.assert_allclose(advantages[1], [0.5], rtol=1e-6)
  np.testing.assert_allclose(np.concatenate(returns), 1, rtol=1e-6)


def two_turns():
  """Prompt 0-3, turn of actions 4-5, observation 6, turn of action 7."""
  t = episode(4, 1.0)
  mask = np.array([0, 0, 0, 0, 1, 1, 0, 1], bool)
  return dataclasses.replace(t, action_mask=mask, turn_starts=(0, 4, 6, 7))


def test_turns_are_counted_over_those_with_actions():
  np.testing.assert_array_equal(estimate.action_turns(two_turns()), [0, 0, 1])


def test_turn_level_gae():
  """V = 0.5 at turn 1, 0.1 at turn 2; lambda 1: returns 1, advantages 0.5, 0.5, 0.9."""
  advantages, returns = estimate.critic_advantages(
    [two_turns()], [VALUES], CriticConfig(turn_level=True)
  )
  np.testing.assert_allclose(advantages[0], [0.5, 0.5, 0.9], rtol=1e-6)
  np.testing.assert_allclose(returns[0], [1, 1, 1], rtol=1e-6)


def test_a_cut_answer_is_bootstrapped_and_a_finished_one_is_not():
  """No verdict: reward 0, then the critic's 0.8. With lambda 1 that is the target of each token."""
  cut = episode(3, 0.0, rewards={}, outcome=Outcome.TRUNCATED, finish_reason=FinishReason.LENGTH)
  done = episode(3, 1.0)
  rewards = estimate.outcome_rewards([cut, done], RLConfig(), 8)
  assert rewards == [0.0, 1.0]
  _, returns = estimate.critic_advantages(
    [cut, done], [VALUES, VALUES], CriticConfig(gamma=0.5), rewards, None, [0.8, None]
  )
  np.testing.assert_allclose(returns[0], [0.1, 0.2, 0.4], rtol=1e-6)
  np.testing.assert_allclose(returns[1], [0.25, 0.5, 1.0], rtol=1e-6)


def test_the_probe_adds_the_state_after_the_last_token():
  probed = estimate.with_probe(two_turns())
  assert len(probed.tokens) == 9
  assert np.flatnonzero(probed.action_mask)[-1] - 1 == 7  # its predictor is the last real token
  assert probed.num_actions == two_turns().num_actions + 1


def leaf(name):
  return Leaf(name, lambda *_: None)


TREE = RewardTree(
  Node(
    "reward",
    (Child(0.3, leaf("format")), Child(0.7, leaf("answer"), optional=True)),
    gates=(Gate(leaf("safe"), 1.0),),
    gate_value=-0.5,
  )
)


@pytest.mark.parametrize(
  ("rewards", "parts"),
  [
    ({"": 0.75, "safe": 1.0, "format": 0.5, "answer": 0.85}, [(0.3, 0.5), (0.7, 0.85)]),
    ({"": 0.5, "safe": 1.0, "format": 0.5}, [(0.3, 0.5), (0.7, None)]),
    ({"": -0.5, "safe": 0.0}, [(0.3, -0.5), (0.7, -0.5)]),
  ],
)
def test_parts_of_a_reward(rewards, parts):
  """All children; one without a value; a gate that closed the root."""
  assert root_parts(TREE, rewards) == parts
  assert root_parts(RewardTree(leaf("answer")), {"": 0.25}) == [(1.0, 0.25)]


def test_gdpo_reads_the_parts_of_every_domain():
  """A domain of two parts and one of one; a group that lost its peers gets 0."""
  two = [
    episode(1, 0.5, group=0, rewards={"": 0.5, "safe": 1.0, "format": a, "answer": b}, domain="two")
    for a, b in ((1, 0), (0, 1))
  ]
  one = [episode(2, r, group=1, domain="one") for r in (1.0, 0.0)]
  alone = [episode(1, 1.0, group=2, domain="one")]
  trees = {"two": TREE, "one": RewardTree(leaf("answer"))}
  got = estimate.group_advantages([*two, *one, *alone], "gdpo", trees=trees)
  raw = np.array([-0.4, 0.4, 1.0, -1.0]) / np.sqrt(2)
  # The whitening counts the lonely episode, which is 0, and not its stand-in without a score.
  scale = np.sqrt((raw**2).sum() / (5 - 1))
  np.testing.assert_allclose([x[0] for x in got], [*(raw / scale), 0.0], rtol=1e-4, atol=1e-7)
  assert [len(x) for x in got] == [1, 1, 2, 2, 1]


def test_group_estimators_take_shaped_rewards():
  episodes = [episode(1, 1.0), episode(2, 1.0)]
  got = estimate.group_advantages(episodes, "rloo", [1.0, 0.5])
  np.testing.assert_allclose([x[0] for x in got], rloo([1.0, 0.5], [0, 0]), rtol=1e-6)


def test_advantages_of_unit_size_by_domain():
  """a: sqrt((3² + 3² + 1²)/3); b: all 0, and so they stay."""
  advantages = [np.float32([3, -3]), np.float32([0, 0]), np.float32([1])]
  got = estimate.unit_by_domain(advantages, ["a", "b", "a"])
  rms = np.sqrt(19 / 3)
  np.testing.assert_allclose(np.concatenate(got), [3 / rms, -3 / rms, 0, 0, 1 / rms], rtol=1e-6)
  assert [x.dtype for x in got] == [np.float32] * 3
