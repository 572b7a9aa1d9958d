"""What must not change a gradient: how the batch is cut, packed and ordered."""

import dataclasses

import jax
import numpy as np
import pytest
from train_toys import (
  assert_trees_close,
  assert_trees_equal,
  gradient,
  session_on,
  toy_experiment,
  toy_trajectories,
  toy_trajectory,
)

from ptjax.experience.packing import PackConfig
from ptjax.train.batch import Batch, minibatches, policy_batches, weights_of
from ptjax.train.estimate import group_advantages
from ptjax.train.experiment import RLConfig

PACK = PackConfig(length=64, actions=32, rows=8)
KL = RLConfig(
  prompts_per_step=2,
  reference=True,
  objective=dataclasses.replace(RLConfig().objective, kl_coef=1e-30),
)
"""A KL too small to be seen, whose presence keeps every trajectory in the batch."""


@pytest.fixture(scope="module")
def session(tiny_source, tmp_path_factory):
  with session_on(1, toy_experiment(tiny_source), tmp_path_factory.mktemp("run")) as session:
    yield session


def toy_batch(trajectories=None) -> Batch:
  trajectories = toy_trajectories(groups=16) if trajectories is None else trajectories
  return Batch(trajectories, group_advantages(trajectories, "grpo"))


def gradient_of(session, batch: Batch, pack: PackConfig = PACK, rl: RLConfig | None = None):
  """Gradient and loss of one update, of any packing."""
  rl = rl or session.experiment.rl
  batches = policy_batches(batch, rl, pack, session.experiment.policy.max_new_tokens)
  state, metrics = session.policy.update(session.init_policy(), batches)
  return gradient(state), float(metrics["loss"])


@pytest.fixture(scope="module")
def plain(session):
  grads, loss = gradient_of(session, toy_batch())
  assert max(np.abs(g).max() for g in jax.tree.leaves(grads)) > 1e-2
  return grads, loss


def assert_same(actual, expected):
  assert_trees_close(actual[0], expected[0], 1e-6)
  np.testing.assert_allclose(actual[1], expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
  "pack",
  [
    pytest.param(dataclasses.replace(PACK, rows=3), id="micro_batches_of_3_rows"),
    pytest.param(PackConfig(length=160, actions=64, rows=4), id="longer_rows"),
    pytest.param(PackConfig(length=24, actions=9, rows=16), id="a_trajectory_or_two_a_row"),
  ],
)
def test_cutting_and_packing(session, plain, pack):
  assert_same(gradient_of(session, toy_batch(), pack), plain)


def test_order_of_trajectories(session, plain):
  trajectories = toy_trajectories(groups=16)
  order = np.random.default_rng(0).permutation(len(trajectories))
  assert_same(gradient_of(session, toy_batch([trajectories[i] for i in order])), plain)


def test_trajectories_without_advantage_are_dropped_but_counted(session, plain):
  batch, new_tokens = toy_batch(), session.experiment.policy.max_new_tokens

  def slots(rl):
    return sum(int(b.rows.mask_BA.sum()) for b in policy_batches(batch, rl, PACK, new_tokens))

  idle = sum(
    t.num_actions for t, a in zip(batch.trajectories, batch.advantages, strict=True) if not a.any()
  )
  assert idle > 0
  assert slots(session.experiment.rl) == slots(KL) - idle
  # The session's own objective has no KL, so this is the same loss with nothing dropped.
  assert_same(gradient_of(session, batch, rl=KL), plain)


def test_a_batch_without_advantages_has_no_gradient(session):
  batch = toy_batch()
  batch = dataclasses.replace(batch, advantages=[np.zeros_like(a) for a in batch.advantages])
  e = session.experiment
  assert policy_batches(batch, e.rl, e.pack, e.policy.max_new_tokens) == []
  before = session.init_policy()
  after, metrics = session.policy.update(session.init_policy(), [])
  assert_trees_equal(after.params, before.params)
  assert int(after.updates) == 1
  assert float(metrics["loss"]) == float(metrics["grad_norm"]) == 0.0


@pytest.mark.parametrize(
  ("aggregation", "weights"),
  [
    ("token_mean", [1 / 8, 1 / 8, 1 / 8]),
    ("seq_mean_token_mean", [1 / 3, 1 / 6, 1 / 15]),
    ("seq_mean_token_sum_norm", [1 / 24, 1 / 24, 1 / 24]),
    ("fixed", [1 / 3, 1 / 3, 1 / 3]),
  ],
)
def test_normalisers_count_the_global_batch(aggregation, weights):
  """Completions of 1, 2 and 5 tokens in micro-batches of one row each."""
  prompt = np.arange(4)
  trajectories = [
    toy_trajectory(prompt + i, np.arange(n), group=i, reward=float(i))
    for i, n in enumerate((1, 2, 5))
  ]
  batch = Batch(trajectories, [np.ones(t.num_actions, np.float32) for t in trajectories])
  rl = RLConfig(aggregation=aggregation, prompts_per_step=1)
  assert weights_of(batch, rl, 8) == pytest.approx(weights)
  parts = policy_batches(batch, rl, PackConfig(length=9, actions=5, rows=1), 8)
  assert len(parts) == 3
  summed = sorted(float(part.weights_BA[part.rows.mask_BA].sum()) for part in parts)
  assert summed == pytest.approx(sorted(w * n for w, n in zip(weights, (1, 2, 5), strict=True)))


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_normalisers_survive_dropping(aggregation):
  """The weights of what is kept are the same whether or not the rest is dropped."""
  batch, rl = toy_batch(), RLConfig(aggregation=aggregation, prompts_per_step=2)
  weights = np.asarray(weights_of(batch, rl, 8))
  moving = np.asarray([a.any() for a in batch.advantages])
  lengths = np.asarray([t.num_actions for t in batch.trajectories])
  total = sum(float(p.weights_BA.sum()) for p in policy_batches(batch, rl, PACK, 8))
  assert total == pytest.approx((weights * lengths)[moving].sum(), rel=1e-5)
  assert (weights * lengths).sum() == pytest.approx(1)


def test_minibatches_are_whole_groups():
  batch = toy_batch(toy_trajectories(groups=6, size=3))
  parts = list(minibatches(batch, RLConfig(prompts_per_step=6, minibatches=3)))
  groups = [[t.group for t in part.trajectories] for part in parts]
  assert groups == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3], [4, 4, 4, 5, 5, 5]]
  for part in parts:
    for trajectory, advantages in zip(part.trajectories, part.advantages, strict=True):
      assert len(advantages) == trajectory.num_actions


def test_a_group_that_lost_its_peers_has_no_advantage():
  prompt, answer = np.arange(4), np.arange(3)
  rewards = [(0, 1.0), (0, 0.0), (1, 1.0)]
  advantages = group_advantages(
    [toy_trajectory(prompt + g, answer, g, r) for g, r in rewards], "rloo"
  )
  np.testing.assert_allclose(advantages, [[1.0] * 3, [-1.0] * 3, [0.0] * 3])
