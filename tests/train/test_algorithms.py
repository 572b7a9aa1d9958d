"""The real loop under what the other runs leave out, two steps each, on a tiny model."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest
from train_toys import critic_experiment, session_on, toy_domain, toy_experiment, toy_trajectories

from ptjax.algos.advantages import rloo
from ptjax.algos.entropy import EntropyState
from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints
from ptjax.core.metrics import summarize
from ptjax.core.types import Outcome
from ptjax.domains.catalog import DOMAINS
from ptjax.domains.domain import Grade
from ptjax.experience.groups import DynamicSampling
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.experience.packing import PackConfig
from ptjax.rewards.shaping import ShapingConfig
from ptjax.train.estimate import outcome_rewards
from ptjax.train.experiment import EntropyControl, RLConfig
from ptjax.train.objectives import PolicyObjective
from ptjax.train.policy_objective import CorrectionConfig
from ptjax.train.rl import (
  RLState,
  initial_entropy,
  lost_episodes,
  prepare,
  sampling_seed,
  train,
  trains,
)
from ptjax.train.run import SILENT, restore, save

# A step far above any entropy of the tiny model: the coefficient rises at every step.
ENTROPY = EntropyControl(target=100.0, step=0.01, limit=0.05)


@contextlib.contextmanager
def session_of(experiment, workdir, **changes):
  """A session whose domain `toy` has the changes."""
  with pytest.MonkeyPatch.context() as patch:
    domain = dataclasses.replace(toy_domain(), **changes)
    patch.setitem(DOMAINS, "toy", toy_domain)
    e = dataclasses.replace(experiment, domains=(DomainConfig("toy"),))
    with session_on(1, e, workdir) as session:
      yield dataclasses.replace(session, domains={"toy": domain})


def run(session, critic=None):
  e = session.experiment
  records, all_played = [], []

  def on_step(state, metrics, played):
    records.append(summarize(metrics))
    all_played.append(played)

  start = RLState(0, session.init_policy(), critic, Mixture(e.domains), initial_entropy(e))
  return train(session, start, on_step), records, all_played


@pytest.fixture(scope="module")
def everything(tiny_source, tmp_path_factory):
  """GSPO by token with KL and length in the reward, TIS, dynamic sampling and entropy control."""
  objective = PolicyObjective(
    loss="gspo_token",
    kl_coef=0.1,
    kl_place="reward",
    correction=CorrectionConfig("tis_token"),
    negative_weight=0.5,
    negative_drift=1.0,
  )
  rl = RLConfig(
    num_steps=2,
    prompts_per_step=2,
    group_size=4,
    advantages="rloo",
    aggregation="domain_balanced",
    objective=objective,
    shaping=ShapingConfig(overlong_buffer=4, length_bonus=0.1),
    dynamic_sampling=DynamicSampling(max_rounds=3),
    entropy=ENTROPY,
    reference=True,
    deterministic=True,
  )
  e = toy_experiment(tiny_source, rl=rl)
  passed = lambda rewards: rewards["share"] > 0.1  # noqa: E731
  with session_of(e, tmp_path_factory.mktemp("run"), passed=passed) as session:
    yield session, *run(session)


def test_groups_are_drawn_until_they_teach(everything):
  _, _, records, all_played = everything
  for record, played in zip(records, all_played, strict=True):
    dropped = sum(record[f"groups/dropped_{r}"] for r in ("short", "solved", "unsolved"))
    groups = {p.spec.group for p in played}
    assert len(groups) == dropped + 2 - record["groups/missing"]
    assert 1 <= record["groups/rounds"] <= 3
    assert len(played) == 4 * len(groups)
  assert sum(r["groups/rounds"] for r in records) > 2, "nothing was ever refilled"
  assert sum(r["groups/missing"] for r in records) < 4, "nothing was ever kept"


def test_each_rollout_of_a_step_has_a_seed_of_its_own():
  """Its episodes have the same numbers; the first rollout's seed is that of a step without more."""
  seeds = [sampling_seed(3, 5, number) for number in range(4)]
  assert len(set(seeds)) == 4
  assert seeds[0] == sampling_seed(3, 5)


def test_the_entropy_coefficient_rises_and_is_saved(everything, tmp_path):
  session, end, records, _ = everything
  assert records[0]["policy/entropy_coef"] == 0.0
  assert end.entropy == EntropyState(pytest.approx(0.02), True)
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  save(session, checkpoints, end)
  checkpoints.wait()
  assert restore(session, checkpoints, SILENT).entropy == end.entropy
  checkpoints.close()


def test_the_correction_acts_once_and_is_measured(everything):
  _, _, records, _ = everything
  for record in records:
    if "correction/weight_mean" in record:
      assert record["correction/weight_mean"] == pytest.approx(1, abs=1e-3)
      assert record["correction/ess"] == pytest.approx(1, abs=1e-3)
      assert record["correction/dropped_frac"] == record["policy/negative_drift_frac"] == 0
      assert record["policy/ratio_mean"] == 1.0


def test_the_kl_is_in_the_reward_alone(everything):
  session, end, _, _ = everything
  trajectories = toy_trajectories()
  batch, _ = prepare(session, dataclasses.replace(end, step=1), trajectories)
  assert batch.reference_logprobs is None
  e = session.experiment
  # The toy sampler reported -3 for every token: k1 = -3 - reference, summed over the answer.
  reference = session.logprobs(session.start, trajectories)
  rewards = [
    r - 0.1 * float(np.sum(-3 - ref))
    for r, ref in zip(outcome_rewards(trajectories, e.rl, 8), reference, strict=True)
  ]
  wanted = rloo(rewards, [t.group for t in trajectories])
  got = [advantages[0] for advantages in batch.advantages]
  np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_old_log_probs_of_the_sampler_need_no_forward_pass(everything):
  session, end, _, _ = everything
  objective = PolicyObjective(old_policy="sampler")
  rl = dataclasses.replace(session.experiment.rl, objective=objective)
  e = dataclasses.replace(session.experiment, rl=rl)
  trajectories = toy_trajectories()
  batch, metrics = prepare(
    dataclasses.replace(session, experiment=e), dataclasses.replace(end, step=1), trajectories
  )
  assert "mismatch/max_gap" not in metrics
  np.testing.assert_array_equal(
    np.concatenate(batch.old_logprobs),
    np.concatenate([t.behavior_logprobs[t.action_mask] for t in trajectories]),
  )


def test_cut_answers_train_the_critic_by_bootstrapping(tied_source, tmp_path):
  """In a domain that does not score what was cut: dropped without, trained on with it."""
  e = critic_experiment(tied_source, pack=PackConfig(length=65, actions=33, rows=8))
  critic = dataclasses.replace(
    e.critic,
    bootstrap_truncated=True,
    turn_level=True,
    lam_policy=0.9,
    gamma=0.9,
    warmup_steps=100,  # the policy's update has nothing to do with it
  )
  rl = dataclasses.replace(e.rl, num_steps=1, deterministic=True)
  e = dataclasses.replace(e, critic=critic, rl=rl)
  with session_of(e, tmp_path, score_truncated=False) as session:
    start = session.init_critic()
    # A head of zeros would predict 0 for every state.
    head = start.params["head"]
    random_w = jax.random.normal(jax.random.key(0), head["w"].shape)
    start.params["head"]["w"] = jax.device_put(random_w, head["w"].sharding)
    end, records, all_played = run(session, start)
    cut = [p for p in all_played[-1] if not p.trainable]
    assert cut, "no answer met its length limit"
    assert all(trains(e, p) for p in cut)
    without = dataclasses.replace(e, critic=dataclasses.replace(critic, bootstrap_truncated=False))
    assert not any(trains(without, p) for p in cut)
    assert lost_episodes(without, cut) == []
    failed = dataclasses.replace(cut[0], grade=Grade(Outcome.INFRA_FAILED, {}))
    assert lost_episodes(e, [*cut, failed]) == [failed]
    assert records[-1]["critic/grad_norm"] > 1e-3

    trajectories = [p.trajectory(e.seed) for p in all_played[-1]]
    batch, _ = prepare(session, dataclasses.replace(end, step=1), trajectories)
    rows = [i for i, t in enumerate(trajectories) if not t.rewards]
    # One turn: every token's target is gamma times the value after the last one.
    probed = session.values(
      session.critic, end.critic.params, [estimate_probe(trajectories[i]) for i in rows]
    )
    for i, values in zip(rows, probed, strict=True):
      np.testing.assert_allclose(batch.returns[i], 0.9 * values[-1], rtol=1e-4, atol=1e-6)
      np.testing.assert_allclose(batch.old_values[i], values[:-1], rtol=1e-4, atol=1e-6)
    assert any(abs(float(batch.returns[i][0])) > 1e-6 for i in rows)


def estimate_probe(trajectory):
  """The same trajectory with any other token after its last: the state before it is the same."""
  return dataclasses.replace(
    trajectory,
    tokens=np.append(trajectory.tokens, 65).astype(np.int32),
    action_mask=np.append(trajectory.action_mask, True),
    behavior_logprobs=np.append(trajectory.behavior_logprobs, np.float32(-1)),
    policy_versions=np.append(trajectory.policy_versions, 0).astype(np.int32),
  )
