"""Killed anywhere and started again, a deterministic run ends as if it had never died."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from resume_config import FAULT

from ptjax.core.metrics import read_jsonl, without_perf
from ptjax.data.tokenizer import load_tokenizer
from ptjax.models.importer import load_pretrained

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).parents[2]
STEPS = 6
PREEMPTED = 75

# Faults in the order in which they strike one run; it goes on after each.
FAULTS = {
  "grpo": [
    ("rollout:1", -signal.SIGKILL),  # before there is any checkpoint
    ("save:2", -signal.SIGKILL),
    ("train:3", -signal.SIGKILL),
    ("sigterm:4", PREEMPTED),
    ("save:6", -signal.SIGKILL),  # all is trained, the end is not saved
  ],
  "ppo": [
    ("train:1", -signal.SIGKILL),  # the critic's second minibatch of step 0
    ("sigterm:2", PREEMPTED),
    ("train:9", -signal.SIGKILL),
  ],
}


def launch(source, workdir, cache, algorithm: str, fault: str | None = None):
  """The command of a user, on one device; compiled programs are shared by all runs."""
  config = Path(__file__).with_name("resume_config.py")
  environment = {
    **os.environ,
    "XLA_FLAGS": "",
    "PYTHONPATH": str(ROOT),
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    **({FAULT: fault} if fault else {}),
  }
  command = [sys.executable, "-m", "ptjax.launch", "train", "--config", f"{config}:{algorithm}"]
  arguments = ["--workdir", str(workdir), f"--config.model.source={source}"]
  return subprocess.run(
    [*command, *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env=environment,
    check=False,
    timeout=300,
  )


@pytest.fixture(scope="module", params=FAULTS)
def runs(request, tiny_source, tied_source, tmp_path_factory):
  """(workdir of a run never killed, of one killed many times, the finished processes)."""
  cache = tmp_path_factory.mktemp("programs")
  whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
  source = tiny_source if request.param == "grpo" else tied_source
  done = launch(source, whole, cache, request.param)
  assert done.returncode == 0, done.stderr
  processes = []
  for fault, status in FAULTS[request.param]:
    processes.append(launch(source, broken, cache, request.param, fault))
    assert processes[-1].returncode == status, (fault, processes[-1].stderr)
    place, number = fault.split(":")
    complete = {path.name for path in (broken / "checkpoints").iterdir()}
    if place == "save":
      assert number not in complete, "the kill was to tear this checkpoint"
  processes.append(launch(source, broken, cache, request.param))
  assert processes[-1].returncode == 0, processes[-1].stderr
  return whole, broken, processes


def saved_arrays(workdir: Path):
  with ocp.StandardCheckpointer() as checkpointer:
    return checkpointer.restore((workdir / "checkpoints" / str(STEPS) / "state").absolute())


def test_parameters_and_moments_are_bit_identical(runs):
  whole, broken = saved_arrays(runs[0]), saved_arrays(runs[1])
  assert jax.tree.structure(whole) == jax.tree.structure(broken)
  for want, have in zip(jax.tree.leaves(whole), jax.tree.leaves(broken), strict=True):
    assert np.asarray(have).tobytes() == np.asarray(want).tobytes()


def test_metrics_are_identical(runs):
  whole, broken = (
    [without_perf(record) for record in read_jsonl(workdir / "metrics.jsonl")]
    for workdir in runs[:2]
  )
  assert [record["step"] for record in whole] == list(range(STEPS))
  # A run whose gradients were 0 would prove little.
  assert sum(record["optim/grad_norm"] > 1e-3 for record in whole) >= STEPS - 1
  assert broken == whole


@pytest.mark.parametrize("name", ["trajectories.jsonl", "eval.jsonl"])
def test_samples_and_evaluations_are_identical(runs, name):
  whole, broken = (read_jsonl(workdir / name) for workdir in runs[:2])
  assert whole
  assert broken == whole


def test_a_killed_run_said_where_it_goes_on(runs):
  _, _, processes = runs
  preempted = next(i for i, p in enumerate(processes) if p.returncode == PREEMPTED)
  message = processes[preempted].stderr.splitlines()[-1]
  assert message.startswith("ptjax: stopped by SIGTERM after step")
  step = int(message.split("after step ")[1].split(";")[0])
  assert f"resumed from step {step + 1}" in processes[preempted + 1].stdout


def test_a_finished_run_started_again_changes_nothing(runs, tiny_source, tied_source, tmp_path):
  whole, _, _ = runs
  algorithm = "ppo" if "_ppo" in (whole / "config.json").read_text() else "grpo"
  before = (whole / "metrics.jsonl").read_bytes(), (whole / "eval.jsonl").read_bytes()
  source = tiny_source if algorithm == "grpo" else tied_source
  again = launch(source, whole, tmp_path / "programs", algorithm)
  assert again.returncode == 0, again.stderr
  assert f"resumed from step {STEPS}" in again.stdout
  assert before == ((whole / "metrics.jsonl").read_bytes(), (whole / "eval.jsonl").read_bytes())


def test_the_trained_policy_is_exported(runs, tmp_path):
  """Without a sandbox; the weights are those of the last checkpoint, bit for bit."""
  whole, _, _ = runs
  command = [sys.executable, "-m", "ptjax.launch", "export", "--workdir", str(whole), "--to"]
  done = subprocess.run(
    [*command, str(tmp_path / "out")],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  exported, saved = load_pretrained(str(tmp_path / "out")), saved_arrays(whole)
  jax.tree.map(np.testing.assert_array_equal, exported.params, saved["policy"]["params"])
  source = load_pretrained(json.loads((whole / "config.json").read_text())["model"]["source"])
  assert exported.config == source.config
  assert load_tokenizer(tmp_path / "out") == load_tokenizer(source.tokenizer_source)
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), exported.params, source.params)
  assert any(jax.tree.leaves(moved))
  assert "step 6" in (tmp_path / "out" / "README.md").read_text()
