"""Faults that others reported, in the path from episodes to the loss; each test names its fault."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_toys import session_on, toy_experiment, toy_trajectories, toy_trajectory

from ptjax.algos.advantages import ADVANTAGES
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import Mixture
from ptjax.experience.packing import PackConfig, pack
from ptjax.models import heads
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.batch import Batch, policy_batches
from ptjax.train.estimate import group_advantages
from ptjax.train.experiment import RLConfig
from ptjax.train.forward import action_logprobs, action_states
from ptjax.train.rl import RLState, prepare, update

COOL = SamplingConfig(temperature=0.7)
PACK = PackConfig(length=64, actions=32, rows=2)


@pytest.fixture(scope="module")
def session(tiny_source, tmp_path_factory):
  """Samples at temperature 0.7, trains in two updates on each batch."""
  e = toy_experiment(tiny_source, policy=PolicyConfig(sampling=COOL, max_new_tokens=8))
  rl = dataclasses.replace(e.rl, minibatches=2, reference=True, prompts_per_step=4)
  with session_on(1, dataclasses.replace(e, rl=rl), tmp_path_factory.mktemp("run")) as session:
    yield session


def first_state(session) -> RLState:
  return RLState(1, session.init_policy(), None, Mixture(session.experiment.domains))


def by_definition(session, trajectory, temperature: float):
  """log_softmax(logits / temperature) of each action, from the logits of a row of its own."""
  rows = pack([trajectory], dataclasses.replace(PACK, rows=1)).rows
  hidden_BAD = action_states(session.model, session.start, rows)
  logits_AV = heads.logits(session.start, hidden_BAD[0], session.model)
  logp_AV = jax.nn.log_softmax(logits_AV / temperature)
  taken = logp_AV[np.arange(len(rows.target_BA[0])), rows.target_BA[0]]
  return np.asarray(taken)[: trajectory.num_actions]


def test_one_temperature_for_policy_old_policy_and_reference_tunix_easylm(session):
  """Tunix scored its reference at T and the others at 1; EasyLM sampled at 0.7, scored at 1."""
  trajectories = toy_trajectories()
  objective = dataclasses.replace(session.experiment.rl.objective, kl_coef=0.1)
  rl = dataclasses.replace(session.experiment.rl, objective=objective)
  e = dataclasses.replace(session.experiment, rl=rl, policy=session.experiment.policy)
  state = dataclasses.replace(first_state(session), step=1)
  patched = dataclasses.replace(session, experiment=e)
  batch, _ = prepare(patched, state, trajectories)
  rows = pack(trajectories, e.pack)
  now, _ = action_logprobs(session.model, session.start, rows.rows, COOL, chunk=32)
  now = rows.gather(np.asarray(now))
  for i, trajectory in enumerate(trajectories):
    wanted = by_definition(session, trajectory, 0.7)
    for got in (now[i], batch.old_logprobs[i], batch.reference_logprobs[i]):
      np.testing.assert_allclose(got, wanted, atol=1e-4)
  assert np.abs(by_definition(session, trajectories[0], 1.0) - now[0]).max() > 1e-2


def test_old_log_probs_stay_while_the_policy_moves_easylm(session):
  """Recomputed before each update, as EasyLM did, the ratio of every update would be 1."""
  state = first_state(session)
  batch, _ = prepare(session, state, toy_trajectories())
  _, _, metrics = update(session, state, batch)
  assert abs(float(metrics["policy/ratio_mean"].compute()) - 1) > 1e-5


def test_tokens_of_unused_positions_change_nothing_maxtext_4016(session):
  """Pads were attended because segment ids were missing."""
  rows = pack(toy_trajectories(), PACK).rows
  logp, _ = action_logprobs(session.model, session.start, rows, COOL, chunk=32)
  unused = rows.segment_ids_BT == 0
  assert unused.any()
  noise = np.random.default_rng(0).integers(0, 256, unused.shape)
  changed = rows._replace(tokens_BT=np.where(unused, noise, rows.tokens_BT).astype(np.int32))
  again, _ = action_logprobs(session.model, session.start, changed, COOL, chunk=32)
  mask = rows.mask_BA
  np.testing.assert_array_equal(np.asarray(logp)[mask], np.asarray(again)[mask])


def test_rows_that_fill_a_micro_batch_train_nothing_rllm_508():
  trajectories = toy_trajectories(groups=1)
  rows = pack(trajectories, dataclasses.replace(PACK, rows=8)).rows
  assert len(rows.mask_BA) == 8
  assert rows.mask_BA.sum() == sum(t.num_actions for t in trajectories)
  assert not rows.mask_BA[1:].any()


def test_a_token_that_looks_like_padding_is_trained_trl_3200_maxtext_5198():
  """Masks come from lengths: the end token, and a token with the number that pads rows, count."""
  trajectory = toy_trajectory(np.array([0, 5, 0]), np.array([0, 7, 0]), group=0, reward=1.0)
  rows = pack([trajectory], PACK).rows
  np.testing.assert_array_equal(rows.target_BA[0][rows.mask_BA[0]], [0, 7, 0])
  # The prompt is in sight although it consists of the padding's number.
  assert (rows.segment_ids_BT[0] == 1).sum() == 6


def test_only_generated_tokens_are_trained_nemo_2176():
  """An assistant's turn in the prompt is context: the mask says what was sampled."""
  t = toy_trajectory(np.arange(6), np.arange(10, 14), group=0, reward=1.0)
  mask = np.array([0, 0, 0, 0, 0, 0, 1, 0, 1, 1], bool)  # position 7: a tool's answer
  rows = pack([dataclasses.replace(t, action_mask=mask)], PACK).rows
  np.testing.assert_array_equal(rows.target_BA[0][rows.mask_BA[0]], [10, 12, 13])


def test_tokens_weigh_alike_across_micro_batches_prime_rl_2562():
  """One micro-batch of 1 token, one of 7: a mean of their means would weigh the one 7 times."""
  short = toy_trajectory(np.arange(4), np.arange(1), group=0, reward=1.0)
  long = toy_trajectory(np.arange(5), np.arange(7), group=1, reward=0.0)
  batch = Batch([short, long], [np.ones(t.num_actions, np.float32) for t in (short, long)])
  parts = policy_batches(batch, RLConfig(), PackConfig(length=12, actions=7, rows=1), 8)
  assert [int(p.rows.mask_BA.sum()) for p in parts] == [7, 1]
  weights = np.concatenate([p.weights_BA[p.rows.mask_BA] for p in parts])
  np.testing.assert_allclose(weights, 1 / 8, rtol=1e-6)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_exactly_one_score_a_sample_nemo_3635(name):
  with pytest.raises(ValueError, match="give one of each per trajectory"):
    ADVANTAGES[name]([1.0, 0.0, 0.5], [0, 0], None, np.ones(2))
  trajectories = toy_trajectories()
  assert len(group_advantages(trajectories, name)) == len(trajectories)


def test_the_reference_of_a_moved_policy_is_the_start_nemo_2955(session):
  """Restored weights change the policy, never the reference: it is loaded from its source."""
  trajectories = toy_trajectories()
  before = session.logprobs(session.start, trajectories)
  state = first_state(session)
  batch, _ = prepare(session, state, trajectories)
  policy, _, _ = update(session, state, batch)  # donates what it trains
  moved = dataclasses.replace(state, policy=policy, step=2)
  assert not np.array_equal(
    np.concatenate(session.logprobs(policy.params, trajectories)), np.concatenate(before)
  )
  objective = dataclasses.replace(session.experiment.rl.objective, kl_coef=0.1)
  rl = dataclasses.replace(session.experiment.rl, objective=objective)
  e = dataclasses.replace(session.experiment, rl=rl)
  again, _ = prepare(dataclasses.replace(session, experiment=e), moved, trajectories)
  np.testing.assert_array_equal(np.concatenate(again.reference_logprobs), np.concatenate(before))
  assert jnp.isfinite(np.concatenate(before)).all()
