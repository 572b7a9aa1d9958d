"""The real loop makes a tiny model better at a toy task; and the held-out evaluation of it."""

import dataclasses

import numpy as np
import pytest
from train_toys import session_on, toy_domain, toy_experiment

from ptjax.core.metrics import summarize
from ptjax.domains.catalog import DOMAINS
from ptjax.evals.heldout import EvalConfig, heldout, pass_rates
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.train.experiment import RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, train

STEPS = 15


@pytest.fixture(scope="module")
def session(tiny_source, tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "toy", toy_domain)
    e = toy_experiment(
      tiny_source,
      domains=(DomainConfig("toy"),),
      rl=RLConfig(num_steps=STEPS, prompts_per_step=4, group_size=8, reference=True),
      optimizer=OptimizerConfig(learning_rate=3e-3),
      eval=EvalConfig(tasks_per_domain=6),
    )
    with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
      yield session


@pytest.fixture(scope="module")
def records(session):
  """The metrics of a whole run, as they are written."""
  state = RLState(0, session.init_policy(), None, Mixture(session.experiment.domains))
  records = []
  end = train(session, state, lambda state, metrics, played: records.append(summarize(metrics)))
  assert end.step == STEPS
  return records


def test_reward_improves(records):
  rewards = [record["reward/mean"] for record in records]
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3, rewards


def test_the_kl_grows_from_zero(records):
  assert records[0]["policy/kl"] == pytest.approx(0, abs=1e-6)
  assert records[-1]["policy/kl"] > 0.01


def test_the_sampler_agrees_with_the_trainer_at_every_step(records):
  assert records[0]["mismatch/max_gap"] < 1e-3
  for record in records:
    if "mismatch/kl" in record:
      assert record["mismatch/kl"] < 1e-6
      assert record["mismatch/ratio_max"] < 1.01
      assert record["mismatch/ess"] == pytest.approx(1, abs=1e-5)


def test_the_record_counts_what_was_played(records):
  for record in records:
    assert 1 <= record["length/min"] <= record["length/mean"] <= record["length/max"] <= 8
    assert record["reward/mean"] == record["reward/toy"] == record["reward/toy/share"]
    assert record["rollout/infra_failed"] == record["rollout/unscorable"] == 0


def test_heldout_tasks_are_the_same_for_every_run(session):
  def play(seed):
    config = dataclasses.replace(session.experiment.eval, sample_seed=seed)
    session.engine.set_weights(session.start, 0)
    return session.runner.run(
      heldout(
        session.engine,
        session.template,
        session.domains,
        session.services,
        session.experiment.policy,
        config,
      )
    )

  first, again, other = play(1), play(1), play(2)
  tasks = [p.spec.task for p in first]
  assert len(tasks) == 6
  assert {t.split for t in tasks} == {"heldout"}
  assert [t.seed for t in tasks] == [p.spec.task.seed for p in other]
  answers = [[p.episode.response for p in played] for played in (first, again, other)]
  assert answers[0] == answers[1] != answers[2]
  assert [(r.domain, r.total) for r in pass_rates(first)] == [("toy", 6), ("all", 6)]
