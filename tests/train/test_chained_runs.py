"""A run that starts where another ended: RL from the export of a fine-tuned model."""

import contextlib

import jax
import numpy as np
import pytest
from fit_toys import conversations, source_config, write_jsonl
from train_toys import assert_trees_equal, session_on, toy_experiment

from ptjax.checkpoint.manager import Checkpoints
from ptjax.core.metrics import summarize
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.experience.packing import PackConfig
from ptjax.launch.cli import main
from ptjax.launch.export import newest
from ptjax.launch.train import write_config
from ptjax.models.importer import load_pretrained
from ptjax.train import sft
from ptjax.train.experiment import ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, train
from ptjax.train.run import SILENT, restore
from ptjax.train.supervised import FitConfig, FitObserver


@pytest.fixture(scope="module")
def tuned(tiny_source, tmp_path_factory):
  """Workdir of two updates of SFT."""
  folder = tmp_path_factory.mktemp("sft")
  data = source_config(write_jsonl(folder / "toy.jsonl", conversations()))
  e = sft.SFTExperiment(
    data=data,
    model=ModelConfig(str(tiny_source)),
    heldout=sft.HeldoutConfig(0.0),
    pack=PackConfig(length=96, actions=48, rows=8),
    fit=FitConfig(num_steps=2, batch_size=8),
    optimizer=OptimizerConfig(learning_rate=5e-4),
  )
  write_config(e, folder)
  sft.run(e, folder, FitObserver())
  return folder


@pytest.mark.usefixtures("toy_in_catalog")
def test_rl_starts_from_the_export_of_a_fine_tuned_model(tuned, tiny_source, tmp_path):
  assert main(["export", "--workdir", str(tuned), "--to", str(tmp_path / "exported")]) == 0
  base = load_pretrained(str(tiny_source))
  _, weights = newest(tuned, base)
  rl = RLConfig(num_steps=1, prompts_per_step=2, group_size=8, reference=True)
  e = toy_experiment(tmp_path / "exported", domains=(DomainConfig("toy"),), rl=rl)
  with session_on(1, e, tmp_path) as session:
    assert_trees_equal(session.start, weights)
    table = base.params["embed"]["table"]
    assert np.abs(np.asarray(session.start["embed"]["table"]) - table).max() > 1e-4
    records = []
    state = RLState(0, session.init_policy(), None, Mixture(e.domains))
    end = train(session, state, lambda state, metrics, played: records.append(summarize(metrics)))
    # The reference is the fine-tuned model, and sampler and trainer agree on it.
    assert records[0]["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert records[0]["mismatch/ess"] == pytest.approx(1, abs=1e-5)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), end.policy.params, session.start)
    assert max(jax.tree.leaves(moved)) > 0


@pytest.mark.usefixtures("toy_in_catalog")
def test_rl_does_not_go_on_in_the_workdir_of_a_fine_tuning(tuned, tiny_source):
  e = toy_experiment(tiny_source, domains=(DomainConfig("toy"),))
  with session_on(1, e, tuned) as session:
    with contextlib.closing(Checkpoints(tuned, e.checkpoint)) as checkpoints:
      with pytest.raises(ValueError, match=r"left by another kind of run.*`export` makes a model"):
        restore(session, checkpoints, SILENT)
