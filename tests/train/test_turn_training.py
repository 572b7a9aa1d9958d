"""PPO on episodes of several turns, through the real loop: it learns, from sampled tokens alone."""

import asyncio
import dataclasses

import numpy as np
import pytest
from train_toys import critic_experiment, session_on, toy_domain

from ptjax.core.metrics import summarize
from ptjax.domains.catalog import DOMAINS
from ptjax.domains.replay import read_records, replay
from ptjax.envs.context import Episodic
from ptjax.envs.environment import Budget, Services, Task
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.experience.packing import PackConfig, pack
from ptjax.rewards import tree
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import CriticConfig, RLConfig
from ptjax.train.objectives import PolicyObjective
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, prepare, train
from ptjax.train.run import RunLog

pytestmark = pytest.mark.slow  # compiles for longer than it trains

STEPS = 8
BYTE = "7"
ADAM = OptimizerConfig(learning_rate=3e-3)


async def two_turns(task, ctx):
  await ctx.generate()
  ctx.observe({"role": "user", "content": f"again, {task.seed % 10}"})
  await ctx.generate()


def share_of_both(task, episode, services):
  """The share of one character in each of two turns; a turn that never came has none."""
  del task, services
  return sum(text.count(BYTE) / max(len(text), 1) for text in episode.responses) / 2


def make_task(seed, split):
  return Task("twice", seed, split, ({"role": "user", "content": f"{seed % 100}"},), {})


def twice():
  node = tree.Node("reward", (tree.Child(1.0, tree.EpisodeLeaf("share", share_of_both)),))
  return dataclasses.replace(
    toy_domain(),
    name="twice",
    make_task=make_task,
    rewards=tree.RewardTree(node),
    play=Episodic(two_turns, budget=Budget(turns=2)),
    oracle=lambda _: (BYTE, BYTE),
  )


@pytest.fixture(scope="module")
def session(tiny_source, tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "twice", twice)
    e = critic_experiment(
      tiny_source,
      domains=(DomainConfig("twice"),),
      engine=EngineConfig(num_slots=16, max_length=128, decode_chunk=4, keep_history=16),
      pack=PackConfig(length=128, actions=32, rows=8),
      optimizer=ADAM,
      rl=RLConfig(
        num_steps=STEPS,
        prompts_per_step=4,
        group_size=8,
        contract_every=100,
        advantages="gae",
        objective=PolicyObjective(loss="ppo", logit_chunk=16),
      ),
      critic=CriticConfig(num_layers=1, turn_level=True, lam=0.95, optimizer=ADAM),
    )
    with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
      yield session


@pytest.fixture(scope="module")
def run(session):
  """(metrics of each step, episodes of each step)."""
  mixture = Mixture(session.experiment.domains)
  state = RLState(0, session.init_policy(), session.init_critic(), mixture)
  records, episodes = [], []

  def on_step(state, metrics, played):
    del state
    records.append(summarize(metrics))
    episodes.append(played)

  train(session, state, on_step)
  return records, episodes


def test_reward_improves(run):
  rewards = [record["reward/twice/share"] for record in run[0]]
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2, rewards


def test_only_what_was_sampled_is_trained_on(session, run):
  played = [p for p in run[1][-1] if p.trainable]
  trajectories = [p.trajectory(0) for p in played]
  assert any(len(p.episode.responses) == 2 for p in played)
  packed = pack(trajectories, session.experiment.pack)
  targets = packed.gather(packed.rows.target_BA)
  predictors = packed.gather(packed.rows.predictor_BA)
  tokenizer = session.template.tokenizer
  for p, place, wanted, before in zip(played, packed.places, targets, predictors, strict=True):
    assert packed.rows.mask_BA[place.row, place.start : place.stop].all()
    ends = [len(tokenizer.encode(text)) for text in p.episode.responses]
    assert tokenizer.decode(wanted).replace("<|im_end|>", "") == "".join(p.episode.responses)
    assert len(wanted) - sum(ends) in (len(ends), len(ends) - 1)  # the last turn may be cut
    # The state before each action is the one of the token before it in the episode.
    positions = packed.rows.positions_BT[place.row, before]
    np.testing.assert_array_equal(positions, np.flatnonzero(p.episode.action_mask) - 1)


def test_the_actions_of_a_turn_have_one_advantage(session, run):
  trajectories = [p.trajectory(0) for p in run[1][0] if p.trainable]
  mixture = Mixture(session.experiment.domains)
  state = RLState(1, session.init_policy(), session.init_critic(), mixture)
  batch, _ = prepare(session, state, trajectories)
  seen = 0
  for trajectory, advantages in zip(trajectories, batch.advantages, strict=True):
    lengths = [int(part.sum()) for part in np.split(trajectory.action_mask, trajectory.turn_starts)]
    turns = np.split(advantages, np.cumsum([n for n in lengths if n])[:-1])
    assert all((turn == turn[0]).all() for turn in turns)
    seen += len(turns) == 2
  assert seen > 8


def test_the_record_counts_turns(run):
  for record in run[0]:
    assert 1 < record["turns/mean"] <= record["turns/max"] == 2
    assert record["perf/prefill_saved"] > 0


def test_samples_of_a_run_replay(run, tmp_path):
  RunLog(tmp_path, next_step=0).samples("train", 0, run[1][0][:6])
  records = read_records(tmp_path / "trajectories.jsonl")
  assert len(records) == 6
  assert all(record["reward"] is not None for record in records)
  for record in records:
    assert asyncio.run(replay(twice(), record, Services())).difference == ""
