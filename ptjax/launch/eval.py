"""Evaluates the latest checkpoint of a workdir on the held-out tasks of its domains."""

import argparse
from pathlib import Path

from ptjax.core.config import ConfigError, from_json, with_overrides
from ptjax.launch.arguments import add_overrides

NAME = "eval"
HELP = "evaluate the latest checkpoint of a workdir"
EPILOG = """\
examples:
  python -m ptjax.launch eval --workdir runs/demo
  python -m ptjax.launch eval --workdir runs/demo --config.eval.tasks_per_domain=200

The configuration is the one stored in the workdir; overrides change it for this call.
A run may be live meanwhile.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--workdir", required=True, metavar="DIR", help="directory of a run")
  add_overrides(parser)


def run(args: argparse.Namespace) -> int:
  path = Path(args.workdir)
  stored = path / "config.json"
  if not stored.is_file():
    raise ConfigError(f"{path} holds no config.json; give the --workdir of a run")
  from ptjax.train.experiment import Experiment

  experiment = with_overrides(from_json(Experiment, stored.read_text()), args.overrides)
  from ptjax.launch.progress import terminal_observer
  from ptjax.train import run as train_run

  train_run.evaluate(experiment, path, terminal_observer(experiment))
  return 0
