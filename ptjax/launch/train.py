"""Trains as the configuration says; the same command in the same workdir resumes."""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptjax.core.config import to_json
from ptjax.launch import workdir
from ptjax.launch.arguments import add_run_arguments, load_config

NAME = "train"
HELP = "train, or resume training, in a workdir"
EPILOG = """\
examples:
  python -m ptjax.launch train --config configs/demo_smollm2.py --workdir runs/demo
  python -m ptjax.launch train --config configs/demo_smollm2.py --workdir runs/seed1 \\
      --config.seed=1 --config.rl.kl_coef=0.01
  python -m ptjax.launch train --gin_file my.gin --gin_bindings "RLConfig.kl_coef = 0.01" \\
      --workdir runs/gin

The workdir receives config.json, metrics.jsonl, trajectories, checkpoints and the report.
SIGTERM saves a checkpoint and exits with status 75: run the same command again.
"""

EXIT_PREEMPTED = 75
"""EX_TEMPFAIL of sysexits.h, which batch systems can be told to answer with a restart."""


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.experiment import Experiment

  return Experiment


def run(args: argparse.Namespace) -> int:
  return train(load_config(args, root()), args.workdir)


def train(experiment: Any, directory: str | os.PathLike) -> int:
  """Runs one experiment in a workdir that it holds meanwhile; returns the exit status."""
  with workdir.hold(directory) as path:
    from ptjax.launch.progress import terminal_observer
    from ptjax.train import run as train_run

    write_config(experiment, path)
    try:
      with keep_traceback(path / "error.log"):
        train_run.run(experiment, path, terminal_observer(experiment))
    except train_run.Preempted as preempted:
      print(f"ptjax: {preempted}; run the same command again to go on", file=sys.stderr)
      return EXIT_PREEMPTED
    from ptjax.report.html import write_report

    print(f"report: {write_report(path)}")
  return 0


@contextlib.contextmanager
def keep_traceback(log: Path) -> Iterator[None]:
  """Writes the traceback of a ValueError, which ends as one line on the terminal, to `log`.

  Most are the user's, but a fault of ours after hours of training has to leave its traces.
  """
  try:
    yield
  except ValueError as error:
    log.write_text(traceback.format_exc())
    error.add_note(f"(traceback in {log})")
    raise


def write_config(experiment: Any, path: Path) -> None:
  """Stores the config for `eval`, `view` and the reader, replacing it in one step."""
  draft = path / ".config.json.new"
  draft.write_text(to_json(experiment))
  draft.replace(path / "config.json")
