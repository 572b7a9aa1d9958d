"""What a resumed run keeps of its samples and evaluations."""

import json

from ptjax.core.metrics import append_jsonl
from ptjax.evals.heldout import PassRate
from ptjax.train.run_log import RunLog


def phases(workdir):
  lines = (workdir / "trajectories.jsonl").read_text().splitlines()
  return [(record["phase"], record["step"]) for record in map(json.loads, lines)]


def samples(workdir, *records):
  append_jsonl(
    workdir / "trajectories.jsonl", ({"phase": phase, "step": step} for phase, step in records)
  )


def test_samples_of_an_evaluation_without_a_result_are_dropped(tmp_path):
  samples(tmp_path, ("before", -1), ("train", 0))
  log = RunLog(tmp_path, next_step=1)
  assert not log.has("before")
  assert phases(tmp_path) == [("train", 0)]


def test_samples_of_a_finished_evaluation_are_kept(tmp_path):
  RunLog(tmp_path, next_step=0).evaluation("before", -1, [PassRate("code", 1, 2)])
  samples(tmp_path, ("before", -1), ("train", 0), ("train", 1), ("after", 1))
  log = RunLog(tmp_path, next_step=1)
  assert log.has("before")
  assert phases(tmp_path) == [("before", -1), ("train", 0)]
