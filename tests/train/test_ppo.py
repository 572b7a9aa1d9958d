"""Value networks: GAE on the batch, a critic that learns, and its warm-up."""

import dataclasses

import jax
import numpy as np
import pytest
from train_toys import (
  assert_trees_equal,
  critic_experiment,
  session_on,
  toy_trajectories,
  toy_trajectory,
)

from ptjax.experience.mixture import Mixture
from ptjax.train.estimate import critic_advantages, whiten
from ptjax.train.experiment import CriticConfig
from ptjax.train.rl import RLState, prepare, update

WARMUP = 100


@pytest.fixture(scope="module")
def session(tied_source, tmp_path_factory):
  """PPO whose critic warms up for longer than the tests train it."""
  e = critic_experiment(tied_source)
  critic = dataclasses.replace(e.critic, warmup_steps=WARMUP)
  rl = dataclasses.replace(e.rl, reference=True, contract_every=1000)
  e = dataclasses.replace(e, critic=critic, rl=rl)
  with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
    yield session


def first_state(session, step: int) -> RLState:
  mixture = Mixture(session.experiment.domains)
  return RLState(step, session.init_policy(), session.init_critic(), mixture)


def test_advantages_by_hand():
  """gamma 0.9, lambda 0.8; delta = r + gamma V' - V; A = delta + 0.72 A'."""
  trajectories = [
    toy_trajectory(np.arange(4), np.arange(3), group=0, reward=1.0),
    toy_trajectory(np.arange(4), np.arange(1), group=0, reward=0.0),
  ]
  values = [np.asarray([0.5, 0.2, 0.1], np.float32), np.asarray([-0.3], np.float32)]
  config = CriticConfig(gamma=0.9, lam=0.8)
  advantages, returns = critic_advantages(trajectories, values, config)
  np.testing.assert_allclose(advantages[0], [0.06736, 0.538, 0.9], rtol=1e-6)
  np.testing.assert_allclose(advantages[1], [0.3], rtol=1e-6)
  np.testing.assert_allclose(returns[0], [0.56736, 0.738, 1.0], rtol=1e-6)
  np.testing.assert_allclose(returns[1], [0.0], atol=1e-7)


def test_whitening():
  parts = [np.asarray([1.0, 2.0], np.float32), np.asarray([6.0], np.float32)]
  # Mean 3, squared deviations 4 + 1 + 9 = 14, variance 14 / 2 = 7.
  wanted = (np.asarray([1, 2, 6]) - 3) / np.sqrt(7)
  np.testing.assert_allclose(np.concatenate(whiten(parts)), wanted, rtol=1e-5)
  assert [len(p) for p in whiten(parts)] == [2, 1]
  assert not np.concatenate(whiten([np.full(3, 0.1, np.float32)])).any()
  assert not whiten([np.ones(1, np.float32)])[0].any()


def test_the_critic_starts_at_zero_and_gae_then_is_the_return(session):
  state = first_state(session, step=1)
  trajectories = toy_trajectories()
  batch, metrics = prepare(session, state, trajectories)
  assert not np.concatenate(batch.old_values).any()
  for trajectory, returns in zip(trajectories, batch.returns, strict=True):
    np.testing.assert_array_equal(returns, np.full(trajectory.num_actions, trajectory.reward))
  assert np.concatenate(batch.advantages).mean() == pytest.approx(0, abs=1e-6)
  assert metrics["value/explained_variance"] == pytest.approx(0, abs=1e-6)


def test_another_number_of_tokens_needs_no_new_program(session, caplog):
  state, seen = first_state(session, step=WARMUP + 1), set()
  with jax.log_compiles():
    for seed in range(4):
      caplog.clear()
      trajectories = toy_trajectories(seed)
      batch, _ = prepare(session, state, trajectories)
      policy, critic, _ = update(session, state, batch)
      state = RLState(state.step + 1, policy, critic, state.mixture)
      compiled = [r.getMessage()[:60] for r in caplog.records if "Compiling" in r.getMessage()]
      assert bool(compiled) == (seed == 0), compiled
      seen.add(sum(t.num_actions for t in trajectories))
  assert len(seen) == 4


def test_the_critic_learns_and_its_warm_up_leaves_the_policy_alone(session):
  state, trajectories = first_state(session, step=0), toy_trajectories()
  losses = []
  for step in range(8):
    # Old values are those of the step before, as in a run: the clip moves along.
    batch, _ = prepare(session, dataclasses.replace(state, step=step + 1), trajectories)
    policy, critic, metrics = update(session, state, batch)
    losses.append(float(metrics["critic/loss"]))
    assert "optim/loss" not in metrics
    state = RLState(step + 1, policy, critic, state.mixture)
  assert losses[-1] < 0.5 * losses[0], losses
  assert int(state.critic.updates) == 8
  assert int(state.policy.updates) == 0
  assert_trees_equal(state.policy, session.init_policy())


def test_a_critic_of_a_model_with_an_output_matrix(tiny_source, tmp_path):
  """The trunk takes the layers and leaves the matrix."""
  with session_on(1, critic_experiment(tiny_source), tmp_path) as session:
    assert "lm_head" in session.start
    critic = session.init_critic()
    assert "lm_head" not in critic.params["trunk"]
    assert critic.params["trunk"]["layers"]["attn"]["wq"].shape[0] == 1
    assert not np.concatenate(
      session.values(session.critic, critic.params, toy_trajectories(groups=1))
    ).any()


def test_the_policy_moves_after_the_warm_up(session):
  state = first_state(session, step=WARMUP)
  batch, _ = prepare(session, state, toy_trajectories())
  policy, _, more = update(session, state, batch)
  assert float(more["optim/grad_norm"]) > 1e-3
  assert int(policy.updates) == 1
  assert float(more["policy/ratio_mean"].compute()) == 1.0
