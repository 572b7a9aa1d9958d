"""The configurations of `configs/papers`: each set of a sweep builds, each file runs one step."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.papers import plots, preferences
from configs.papers.prepare import SHAPE, examples, write_start
from ptjax.core.config import load_config_file
from ptjax.domains import addends
from ptjax.envs.environment import Services
from ptjax.launch import cli
from ptjax.launch.sweep import apply_set, load_sweep
from ptjax.sharding.mesh import make_mesh
from ptjax.train import reward_model, session
from ptjax.train.experiment import Experiment
from ptjax.train.preference import PreferenceExperiment
from ptjax.train.reward_model import RewardExperiment
from ptjax.train.sft import SFTExperiment

PAPERS = Path("configs/papers")
SWEEPS = ("length_bias", "off_policy", "mismatch", "value_pretraining", "overoptimisation")
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}


@pytest.fixture(scope="module", autouse=True)
def one_device():
  """What is tested is the configurations: eight devices would only compile longer."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (session, reward_model):
      patch.setattr(module, "make_mesh", lambda config: make_mesh(config, jax.devices()[:1]))
    yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  directory = tmp_path_factory.mktemp("model") / "start"
  write_start(directory, SHAPE | SMALL | HEADS)
  return directory


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
  path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
  return preferences.write_jsonl(path, preferences.annotated(seed=0, count=24))


def launch(verb: str, config: str, workdir: Path, *overrides: str) -> None:
  args = [verb, "--config", str(PAPERS / f"{config}.py"), "--workdir", str(workdir)]
  assert cli.main([*args, *(f"--config.{o}" for o in overrides)]) == 0


@pytest.fixture(scope="module")
def reward_workdir(source, pairs, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("reward")
  small = (f"model.source={source}", f"data.path={pairs}", "data.heldout=0.3", "pack.rows=2")
  launch("reward", "reward", workdir, *small, "fit.num_steps=1", "fit.batch_size=4")
  return workdir


def test_every_file_is_here_known():
  """A new configuration needs a test of its own."""
  others = {"common", "prepare", "plots", "preferences", "pretrain", "reward", "dpo", "sft"}
  assert {p.stem for p in PAPERS.glob("*.py")} == {*SWEEPS, *others}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_set_of_the_sweep_is_an_experiment(name):
  file = str(PAPERS / f"{name}.py")
  base = load_config_file(file, Experiment)
  made = [apply_set(base, i, overrides) for i, overrides in enumerate(load_sweep(file))]
  arms = {e.name: {f.seed for f in made if f.name == e.name} for e in made}
  assert base.name in arms
  assert all(seeds == {0, 1, 2} for seeds in arms.values())
  plain = {dataclasses.replace(e, seed=0, name="") for e in made}
  if name != "overoptimisation":  # there every seed has a reward model of its own
    assert len(plain) == len(arms), "two arms are the same experiment"
  assert f"--sweep {file} --workdir runs/papers/{name}" in " ".join(
    Path(file).read_text().replace("\\\n", "").split()
  )


@pytest.mark.parametrize("name", SWEEPS)
def test_one_step(name, source, tmp_path, request):
  small = [
    f"model.source={source}",
    "policy.max_new_tokens=8",
    "rl.num_steps=1",
    "rl.prompts_per_step=2",
    "rl.minibatches=1",
    "pack.rows=2",
    "engine.num_slots=8",
    "eval.tasks_per_domain=0",
  ]
  if name == "overoptimisation":
    small.append(f"domains.0.judge.workdir={request.getfixturevalue('reward_workdir')}")
  if name == "mismatch":
    small += ["engine.weight_bits=3", "rl.contract_tolerance=100"]
  launch("train", name, tmp_path, *small)
  (record,) = plots.read_jsonl(tmp_path / "metrics.jsonl")
  assert 1 <= record["length/mean"] <= 8
  assert record["pass/addends"] == record["groups/solve_rate"]


@pytest.mark.parametrize(
  ("name", "root"),
  [
    ("pretrain", SFTExperiment),
    ("sft", SFTExperiment),
    ("dpo", PreferenceExperiment),
    ("reward", RewardExperiment),
  ],
)
def test_configuration_of_another_verb_builds(name, root):
  assert isinstance(load_config_file(PAPERS / f"{name}.py", root), root)


def test_better_answers_as_examples_for_sft(pairs):
  first, example = plots.read_jsonl(pairs)[0], preferences.conversations(pairs)[0]
  answer = {"role": "assistant", "content": first["chosen"]}
  assert example == {"messages": [*first["messages"], answer]}


def test_pairs_hold_a_right_and_a_wrong_answer(pairs):
  for record in plots.read_jsonl(pairs):
    total = int(record["messages"][0]["content"])
    task = dataclasses.replace(addends.make_task(0, "train"), data={"sum": total})
    scores = [addends.grade_answer(task, record[k], Services()) for k in ("chosen", "rejected")]
    assert scores == [1.0, 0.0]


def test_what_the_model_is_taught():
  """Three in ten are wrong, the mark tells in nine cases of ten, and length tells nothing."""
  right, marks, lengths = [], [], []
  for question, reply in (e["messages"] for e in examples(4000)):
    numbers = addends.parse_answer(reply["content"])
    right.append(sum(numbers) == int(question["content"]))
    mark, filler = reply["content"][5], reply["content"][6:]
    assert mark in ".!"
    assert filler == "-" * len(filler)
    marks.append(mark == ".")
    lengths.append(len(filler))
  right, marks, lengths = map(np.asarray, (right, marks, lengths))
  assert right.mean() == pytest.approx(0.7, abs=0.03)
  assert (marks == right).mean() == pytest.approx(0.9, abs=0.02)
  assert lengths[right].mean() == pytest.approx(lengths[~right].mean(), abs=0.3)


def run_of(directory: Path, name: str, lengths: list[float | None]) -> None:
  directory.mkdir(parents=True)
  (directory / "config.json").write_text(json.dumps({"name": name, "rl": {"num_steps": 2}}))
  lines = [
    json.dumps({"length/failed": n, "length/passed": 2.0, "pass/addends": 0.5}) for n in lengths
  ]
  (directory / "metrics.jsonl").write_text("\n".join(lines))


def test_table_and_plot_of_a_sweep(tmp_path):
  for i, lengths in enumerate([[1.0, 3.0], [4.0, 6.0], [None, 9.0]]):
    run_of(tmp_path / f"{i:03d}", "a", lengths)
  arms = plots.read_arms(tmp_path)
  assert (
    plots.table("length_bias", arms).splitlines()[-1].startswith("| a | 5.33 [2, 9] | 2 [2, 2]")
  )
  plots.draw("length_bias", arms, tmp_path / "plot.png")
  assert (tmp_path / "plot.png").stat().st_size > 1000
  run_of(tmp_path / "003", "a", [1.0])
  with pytest.raises(ValueError, match="has 1 steps; run the sweep to its end"):
    plots.read_arms(tmp_path)
