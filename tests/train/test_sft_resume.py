"""The verb `sft`: killed, preempted and started again, it ends as if it had never died."""

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
from fit_toys import conversations, write_jsonl
from sft_resume_config import FAULT

from ptjax.core.metrics import read_jsonl, without_perf

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).parents[2]
FAULTS = [("SIGKILL:1", -signal.SIGKILL), ("SIGTERM:3", 75), ("SIGKILL:5", -signal.SIGKILL)]


@pytest.fixture(scope="module")
def runs(tiny_source, tmp_path_factory):
  """(workdir of a run never killed, of one killed many times, its last process)."""
  base = tmp_path_factory.mktemp("sft")
  data = write_jsonl(base / "data.jsonl", conversations())
  config = Path(__file__).with_name("sft_resume_config.py")

  def launch(workdir: str, fault: str | None = None):
    environment = {
      **os.environ,
      "XLA_FLAGS": "",
      "PYTHONPATH": str(ROOT),
      "JAX_COMPILATION_CACHE_DIR": str(base / "cache"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      **({FAULT: fault} if fault else {}),
    }
    command = [sys.executable, "-m", "ptjax.launch", "sft", "--config", f"{config}:{data}"]
    command += ["--workdir", str(base / workdir), f"--config.model.source={tiny_source}"]
    return subprocess.run(
      command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=300
    )

  done = launch("whole")
  assert done.returncode == 0, done.stderr
  for fault, status in FAULTS:
    process = launch("broken", fault)
    assert process.returncode == status, (fault, process.stderr)
  last = launch("broken")
  assert last.returncode == 0, last.stderr
  return base / "whole", base / "broken", last


def test_parameters_and_moments_are_bit_identical(runs):
  with ocp.StandardCheckpointer() as checkpointer:
    whole, broken = (
      checkpointer.restore((workdir / "checkpoints" / "7" / "state").absolute())
      for workdir in runs[:2]
    )
  assert jax.tree.structure(whole) == jax.tree.structure(broken)
  for want, have in zip(jax.tree.leaves(whole), jax.tree.leaves(broken), strict=True):
    assert np.asarray(have).tobytes() == np.asarray(want).tobytes()


def test_metrics_and_heldout_results_are_identical(runs):
  whole, broken = (
    [without_perf(r) for name in ("metrics.jsonl", "heldout.jsonl") for r in read_jsonl(d / name)]
    for d in runs[:2]
  )
  steps = [r["step"] for r in whole if "when" not in r]
  assert steps == list(range(7))
  assert [r["when"] for r in whole if "when" in r] == ["before", "step 3", "step 6", "after"]
  assert all(r["optim/grad_norm"] > 1e-3 for r in whole if "when" not in r)
  assert broken == whole


def test_the_manifest_names_model_and_data(runs):
  manifest = json.loads((runs[1] / "manifest.json").read_text())
  assert len(manifest["model"]["weights_sha256"]) == 64
  assert [source["license"] for source in manifest["data"]] == ["CC0-1.0"]


def test_the_terminal_says_where_it_went_on(runs):
  assert "resumed from step 4" in runs[2].stdout
  assert "held out, after: sft/nll" in runs[2].stdout
