"""Adapters in every kind of training: only they train, are saved, and come out merged."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from fit_toys import annotated, conversations, source_config, write_jsonl
from train_toys import SMOOTH, assert_trees_equal, session_on, toy_domain, toy_experiment

from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints
from ptjax.core.metrics import summarize
from ptjax.data.config import encoder, open_data
from ptjax.domains.catalog import DOMAINS
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.experience.packing import PackConfig
from ptjax.launch.export import newest
from ptjax.models.importer import load_pretrained
from ptjax.models.lora import A, B, LoraConfig
from ptjax.models.matrices import densify
from ptjax.models.quantize import quantize_blocks
from ptjax.rewards.reward_model import load_reward_model
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import supervised
from ptjax.train.experiment import CriticConfig, ModelConfig, RLConfig
from ptjax.train.loading import load_model
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig, read_split
from ptjax.train.preference import PreferenceExperiment, preference_problem
from ptjax.train.reward_model import RewardExperiment, RewardModelConfig, reward_problem
from ptjax.train.rl import RLState, train
from ptjax.train.run import SILENT, restore, save
from ptjax.train.sft import OneSide, SFTExperiment, read_heldout, sft_problem
from ptjax.train.supervised import FitConfig, FitObserver

LORA = LoraConfig(rank=4, alpha=16.0)
STEPS = 12
FAST = OptimizerConfig(learning_rate=2e-2)


def num_bytes(tree) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def host(tree):
  return jax.tree.map(np.array, tree)


@pytest.fixture(scope="module", params=["float32", "int8"])
def played(request, tiny_source, tmp_path_factory):
  """(open session, its base before, records of a run, the state at its end)."""
  lora = dataclasses.replace(LORA, base=request.param)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "toy", toy_domain)
    e = toy_experiment(
      tiny_source,
      domains=(DomainConfig("toy"),),
      model=ModelConfig(str(tiny_source), lora=lora),
      rl=RLConfig(num_steps=STEPS, prompts_per_step=4, group_size=8, reference=True),
      optimizer=FAST,
    )
    with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
      base, records = host(session.start), []
      state = RLState(0, session.init_policy(), None, Mixture(e.domains))
      on_step = lambda state, metrics, played: records.append(summarize(metrics))  # noqa: E731
      yield session, base, records, train(session, state, on_step)


def test_reinforcement_learning_learns(played):
  _, _, records, _ = played
  rewards = [record["reward/mean"] for record in records]
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.25, rewards


def test_the_reference_is_the_base_and_the_sampler_has_the_adapters(played):
  """The KL starts at 0 and grows; the sampler's merged copy agrees with the trainer."""
  session, base, records, _ = played
  assert records[0]["policy/kl"] == pytest.approx(0, abs=1e-6)
  assert records[-1]["policy/kl"] > 0.01
  assert all(r["mismatch/ratio_max"] < 1.01 for r in records if "mismatch/ratio_max" in r)
  assert session.policy.frozen.base is session.start  # one copy serves as both
  assert_trees_equal(host(session.start), base)


def test_only_adapters_train_and_have_moments(played):
  session, _, _, state = played
  names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state.policy.params)}
  assert names == {A, B}
  assert num_bytes(state.policy.opt_state) < 2.1 * num_bytes(state.policy.params)
  assert num_bytes(state.policy.params) < 0.2 * num_bytes(host(densify(session.start)))


def test_checkpoints_hold_adapters_and_know_their_base(played, tmp_path):
  session, _, _, state = played
  lora = session.experiment.model.lora
  checkpoints = Checkpoints(tmp_path, CheckpointConfig())
  save(session, checkpoints, state)
  checkpoints.wait()
  again = restore(session, checkpoints, SILENT)
  assert_trees_equal(again.policy, state.policy)
  pretrained = load_pretrained(session.experiment.model.source)
  step, merged = newest(tmp_path, pretrained, json.loads(json.dumps(dataclasses.asdict(lora))))
  assert step == STEPS
  want = densify(session.policy.network(state.policy.params))
  jax.tree.map(np.testing.assert_array_equal, merged, host(want))
  assert jax.tree.structure(merged) == jax.tree.structure(pretrained.params)
  other = dataclasses.replace(session, model_hash="0" * 64)
  with pytest.raises(ValueError, match=r"of another model.*start"):
    restore(other, checkpoints, SILENT)
  changed = dataclasses.replace(lora, alpha=1.0)
  e = dataclasses.replace(session.experiment, model=ModelConfig("", lora=changed))
  with pytest.raises(ValueError, match=r"of another model.*alpha"):
    restore(dataclasses.replace(session, experiment=e), checkpoints, SILENT)
  checkpoints.close()


def test_a_quantised_base_is_small(played):
  session, _, _, _ = played
  if session.experiment.model.lora.base == "int8":
    pretrained = load_pretrained(session.experiment.model.source).params
    blocks = num_bytes(pretrained["layers"])
    assert num_bytes(session.start["layers"]) < 0.3 * blocks
    assert_trees_equal(host(session.start), quantize_blocks(pretrained, "int8"))


def test_a_critic_with_adapters_trains_on_the_policys_base(tiny_source, tmp_path):
  critic = CriticConfig(optimizer=dataclasses.replace(SMOOTH, learning_rate=1e-2), lora=LORA)
  rl = RLConfig(num_steps=3, prompts_per_step=2, group_size=4, advantages="gae")
  model = ModelConfig(str(tiny_source), lora=LORA)
  e = toy_experiment(tiny_source, domains=(DomainConfig("toy"),), model=model, critic=critic, rl=rl)
  with session_on(1, e, tmp_path) as session:
    state = RLState(0, session.init_policy(), session.init_critic(), Mixture(e.domains))
    assert set(state.critic.params) == {"trunk", "head"}
    end = train(session, state, lambda *_: None)
  ends = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(session.start["layers"])]
  own = session.critic.trainer.frozen.base["trunk"]["layers"]
  assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(own)] == ends
  assert float(np.abs(end.critic.params["head"]["w"]).max()) > 0
  assert float(np.abs(end.critic.params["trunk"]["layers"]["attn"]["wq"][B]).max()) > 0


def adapted(source):
  model = ModelConfig(str(source), remat="none", lora=LORA)
  return load_model(model, make_mesh(MeshConfig(), jax.devices()[:1]), Rules())


def fitted(problem, e, workdir):
  """(first and last held-out results, the trained state)."""
  results = {}
  observer = FitObserver(on_heldout=lambda when, result: results.update({when: result}))
  state = supervised.run(problem, e.fit, e.checkpoint, workdir, observer)
  return results["before"], results["after"], state


def test_supervised_fine_tuning_learns(tiny_source, tmp_path):
  data = source_config(write_jsonl(tmp_path / "toy.jsonl", conversations()))
  e = SFTExperiment(
    data=data,
    pack=PackConfig(length=96, actions=48, rows=8),
    fit=FitConfig(num_steps=10, batch_size=10, logit_chunk=24),
    optimizer=FAST,
  )
  loaded = adapted(tiny_source)
  encode = encoder(data, loaded.template)
  train_side, held_side = (OneSide(encode, 0.3, heldout=h) for h in (False, True))
  train_data = open_data(data, tmp_path, 0).stream(train_side)
  problem = sft_problem(loaded, train_data, read_heldout(data, held_side, 100), e)
  before, after, state = fitted(problem, e, tmp_path / "run")
  assert after["sft/nll"] < before["sft/nll"] - 0.5
  assert set(state.params) == {"layers"}


def test_preferences_are_learned(tiny_source, tmp_path):
  path = write_jsonl(tmp_path / "pairs.jsonl", annotated(40))
  e = PreferenceExperiment(
    data=PairsConfig(str(path), heldout=0.3),
    pack=PackConfig(length=96, actions=48, rows=8),
    fit=FitConfig(num_steps=10, batch_size=12, logit_chunk=24),
    optimizer=FAST,
  )
  problem = preference_problem(adapted(tiny_source), *read_split(e.data), e)
  before, after, _ = fitted(problem, e, tmp_path / "run")
  assert before["preference/loss"] == pytest.approx(
    np.log(2), abs=1e-4
  )  # the base is the reference
  assert after["preference/loss"] < 0.5


def test_a_reward_model_is_written_merged(tied_source, tmp_path):
  path = write_jsonl(tmp_path / "pairs.jsonl", annotated(40))
  e = RewardExperiment(
    data=PairsConfig(str(path), heldout=0.3),
    reward=RewardModelConfig(num_layers=1),
    pack=PackConfig(length=128, actions=8, rows=8),
    fit=FitConfig(num_steps=10, batch_size=16),
    optimizer=FAST,
    model=ModelConfig(str(tied_source)),
  )
  loaded = adapted(tied_source)
  problem = reward_problem(loaded, *read_split(e.data), e)
  before, after, state = fitted(problem, e, tmp_path / "run")
  assert after["reward_model/nll"] < before["reward_model/nll"] - 0.1
  model = load_reward_model(tmp_path / "run")
  want = densify(problem.trainer.network(state.params))
  jax.tree.map(np.testing.assert_array_equal, host(model.params), host(want))
