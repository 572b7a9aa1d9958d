"""`eval` and `view` of the workdirs of supervised runs."""

import json

import pytest
from fit_toys import annotated, conversations, source_config, write_jsonl
from tiny_model import write_tiny_model

from ptjax.core.config import to_json
from ptjax.core.metrics import read_jsonl
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.launch import bestofn, distill, eval, prefer, reward, sft, train
from ptjax.launch.cli import main
from ptjax.launch.fit import run_in_workdir
from ptjax.rollout.engine import EngineConfig
from ptjax.train.best_of_n import BestOfNExperiment
from ptjax.train.distill import DistillExperiment
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.on_policy import RolloutConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.preference import PreferenceExperiment
from ptjax.train.reward_model import RewardExperiment, RewardModelConfig
from ptjax.train.sft import HeldoutConfig, SFTExperiment
from ptjax.train.supervised import FitConfig

PACK = PackConfig(length=96, actions=48, rows=8)
FIT = FitConfig(num_steps=1, batch_size=4)


def experiments(folder):
  """A short run of each kind by its verb, with the metric that it holds out."""
  model = ModelConfig(str(write_tiny_model(folder / "model", tied=True)))
  data = source_config(write_jsonl(folder / "toy.jsonl", conversations()))
  pairs = PairsConfig(str(write_jsonl(folder / "pairs.jsonl", annotated(16))), heldout=0.3)
  shared = {"model": model, "pack": PACK, "fit": FIT}
  long = shared | {"pack": PackConfig(length=160, actions=48, rows=8)}
  rollout = RolloutConfig(
    group_size=2,
    policy=PolicyConfig(max_new_tokens=4),
    engine=EngineConfig(num_slots=8, max_length=160, decode_chunk=4),
    eval=EvalConfig(tasks_per_domain=2),
  )
  heads = RewardModelConfig(num_layers=1)
  return {
    sft: (SFTExperiment(data=data, heldout=HeldoutConfig(0.3), **shared), "sft/nll"),
    reward: (RewardExperiment(data=pairs, reward=heads, **shared), "reward_model/nll"),
    bestofn: (BestOfNExperiment(rollout=rollout, **long), "pass/arithmetic"),
  }


@pytest.mark.parametrize("verb", [sft, reward, bestofn])
def test_eval_and_view_of_a_supervised_run(verb, tmp_path, capsys):
  experiment, metric = experiments(tmp_path)[verb]
  workdir = tmp_path / "run"
  assert run_in_workdir(verb.trainer()[1], experiment, str(workdir)) == 0
  before, after = read_jsonl(workdir / "heldout.jsonl")
  files = {p: p.read_bytes() for p in workdir.glob("*.json*")}
  capsys.readouterr()

  assert main(["eval", "--workdir", str(workdir)]) == 0
  line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("held out"))
  assert line.startswith("held out, step 1: ")
  assert f"{metric} {after[metric]:.4g}" in line
  assert {p: p.read_bytes() for p in workdir.glob("*.json*")} == files, "eval changes no file"

  assert main(["view", str(workdir)]) == 0
  out = capsys.readouterr().out
  assert "not there" not in out
  cells = [c.strip() for row in out.splitlines() if metric in row for c in row.split("│")]
  assert [f"{before[metric]:.4g}", f"{after[metric]:.4g}"] == cells[2:4]
  page = (workdir / "report.html").read_text()
  assert "Held-out examples" in page
  assert f"<td>{after[metric]:.4g}</td>" in page
  assert "No held-out evaluation" not in page


def test_the_verb_of_a_stored_configuration():
  pairs = PairsConfig("pairs.jsonl")
  stored = {
    train: Experiment(),
    prefer: PreferenceExperiment(data=pairs),
    reward: RewardExperiment(data=pairs),
    bestofn: BestOfNExperiment(),
    distill: DistillExperiment(teacher=ModelConfig()),
  }
  for verb, experiment in stored.items():
    config = json.loads(to_json(experiment))
    assert eval.verb_of(config) is verb
    del config["checkpoint"], config["rules"]  # as an older version may have stored it
    assert eval.verb_of(config) is verb
