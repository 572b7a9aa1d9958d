"""What a user gets wrong about a run: one line, status 2, no traceback; by the real `train`."""

import dataclasses
import json

import pytest
from tiny_model import write_tiny_model

from ptjax.checkpoint.manager import Checkpoints
from ptjax.core.config import from_json, to_json
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.mixture import Mixture
from ptjax.experience.packing import PackConfig
from ptjax.launch import cli, workdir
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState
from ptjax.train.run import save
from ptjax.train.session import open_session

CONFIG = """
from pathlib import Path
from ptjax.core.config import from_json, to_config_dict
from ptjax.train.experiment import Experiment

def get_config():
  text = Path(__file__).with_suffix(".json").read_text()
  return to_config_dict(from_json(Experiment, text))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  return write_tiny_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def experiment(source):
  """A run that would work."""
  return Experiment(
    model=ModelConfig(str(source)),
    engine=EngineConfig(num_slots=8, max_length=256),
    pack=PackConfig(length=256, actions=64, rows=8),
    rl=RLConfig(num_steps=1, prompts_per_step=2, group_size=2),
    optimizer=OptimizerConfig(),
    eval=EvalConfig(tasks_per_domain=0),
  )


@pytest.fixture
def train(experiment, tmp_path, capfd):
  """Runs `train` with overrides; returns its one line on stderr."""
  config = tmp_path / "config.py"
  config.write_text(CONFIG)
  config.with_suffix(".json").write_text(to_json(experiment))

  def run(*overrides: str, directory=tmp_path / "run") -> str:
    command = ["train", "--config", str(config), "--workdir", str(directory)]
    capfd.readouterr()
    assert cli.main([*command, *overrides]) == cli.EXIT_USER_ERROR
    out, err = capfd.readouterr()
    assert err.startswith("ptjax: error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in out + err
    return err

  return run


@pytest.mark.parametrize(
  ("override", "words"),
  [
    ("--config.rl.group_sise=4", ["group_sise", "group_size"]),
    ("--config.rl.group_size=four", ["group_size", "four"]),
    ("--config.rl.advantages=gpro", ["gpro", "grpo"]),
    ("--config.rl.group_size=1", ["group_size 1", "at least 2"]),
    ("--config.rl.minibatches=3", ["prompts_per_step 2", "minibatches 3"]),
    ("--config.rl.advantages=gae", ["gae", "critic"]),
    ("--config.rl.objective.kl_coef=0.1", ["kl_coef 0.1", "rl.reference=True"]),
    ("--config.rl.kl_episodes=0", ["kl_episodes 0"]),
    ("--config.policy.sampling.temperature=0", ["temperature 0", "1.0"]),
    ("--config.policy.max_new_tokens=100", ["max_new_tokens 100", "pack.actions"]),
    ("--config.policy.max_new_tokens=0", ["max_new_tokens 0"]),
    ("--config.engine.max_length=512", ["max_length 512", "pack.length"]),
    ("--config.domains.0.name=arithmetics", ["arithmetics", "did you mean arithmetic?"]),
    ("--config.sandbox.backend=podman", ["podman", "bwrap"]),
    ("--config.mesh.tensor=3", ["8 devices", "tensor"]),
    ("--config.mesh.tensor=8", ["vocab", "tensor", "not divisible"]),
    ("--config.pack.rows=6", ["pack.rows 6", "not divisible", "8"]),
    ("--config.engine.max_length=64", ["max_length", "64", "prompt"]),
  ],
)
def test_values(train, override, words):
  message = train(override)
  for word in words:
    assert word in message


def test_an_adaptive_engine_is_not_deterministic(train):
  message = train("--config.rl.deterministic=true", "--config.engine.adaptive=true")
  assert "engine.adaptive" in message
  assert "rl.deterministic" in message


def test_missing_model(train, tmp_path):
  message = train(f"--config.model.source={tmp_path}/nowhere")
  assert f"{tmp_path}/nowhere" in message
  assert "does not exist" in message


def test_model_package_that_is_not_installed(train):
  assert "pip install" in train("--config.model.source=package:no-such-model")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"PK"])
def test_corrupted_gguf(train, tmp_path, content):
  file = tmp_path / "model.gguf"
  file.write_bytes(content)
  assert str(file) in train(f"--config.model.source={file}")


def test_truncated_safetensors(train, tmp_path):
  broken = write_tiny_model(tmp_path / "broken")
  weights = broken / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-1000])
  assert "model.safetensors is damaged" in train(f"--config.model.source={broken}")


def test_model_without_a_chat_template(train, tmp_path):
  base = write_tiny_model(tmp_path / "base")
  options = json.loads((base / "tokenizer_config.json").read_text())
  del options["chat_template"]
  (base / "tokenizer_config.json").write_text(json.dumps(options))
  assert "no chat template" in train(f"--config.model.source={base}")


def test_no_sandbox_backend(train, monkeypatch):
  monkeypatch.setenv("PATH", "")
  message = train("--config.domains.0.name=code")
  assert "no sandbox backend" in message
  assert "install" in message


def test_arithmetic_alone_needs_no_sandbox(experiment, tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", "")
  with open_session(experiment, tmp_path) as session:
    assert session.services.sandbox is None


def test_live_workdir(train, tmp_path):
  with workdir.hold(tmp_path / "run"):
    message = train()
  assert f"{tmp_path / 'run'} is in use by process" in message


@pytest.fixture(scope="module")
def checkpointed(experiment, tmp_path_factory):
  """A workdir whose checkpoint 1 holds the untrained model."""
  directory = tmp_path_factory.mktemp("checkpointed")
  with open_session(experiment, directory) as session:
    checkpoints = Checkpoints(directory, experiment.checkpoint)
    state = RLState(1, session.init_policy(), None, Mixture(experiment.domains))
    save(session, checkpoints, state)
    checkpoints.close()
  return directory


def test_checkpoint_of_other_weights(train, checkpointed, tmp_path):
  other = write_tiny_model(tmp_path / "other", tied=True, seed=1)
  message = train(f"--config.model.source={other}", directory=checkpointed)
  assert f"{checkpointed / 'checkpoints' / '1'} is of another model" in message
  assert "start" in message
  assert "new workdir" in message


def test_checkpoint_of_another_shape(train, checkpointed, tmp_path):
  other = write_tiny_model(tmp_path / "other", tied=False)
  message = train(f"--config.model.source={other}", directory=checkpointed)
  assert "tie_embeddings: True there, False here" in message


def test_checkpoint_without_the_critic_that_is_wanted(train, checkpointed):
  overrides = ("--config.rl.advantages=gae", "--config.critic.num_layers=1")
  message = train(*overrides, directory=checkpointed)
  assert "critic" in message
  assert f"{checkpointed / 'checkpoints' / '1'}" in message


def test_a_user_error_in_a_run_leaves_its_traceback_in_the_workdir(train, tmp_path):
  message = train("--config.pack.rows=6")
  log = tmp_path / "run" / "error.log"
  assert str(log) in message
  assert "Traceback" in log.read_text()


def test_in_a_process_of_its_own(python, assert_user_error, experiment, tmp_path):
  """With the real stderr and the real exit status."""
  config = tmp_path / "config.py"
  config.write_text(CONFIG)
  model = dataclasses.replace(experiment.model, source=str(tmp_path / "nowhere"))
  config.with_suffix(".json").write_text(to_json(dataclasses.replace(experiment, model=model)))
  assert from_json(Experiment, config.with_suffix(".json").read_text()).model == model
  result = python("-m", "ptjax.launch", "train", "--config", config, "--workdir", tmp_path / "run")
  assert_user_error(result, "nowhere", "does not exist")
