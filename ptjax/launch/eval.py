"""Evaluates the latest checkpoint of a workdir on what its run holds out: tasks, or examples."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ptjax.core.config import ConfigError, from_json, with_overrides
from ptjax.launch import bestofn, distill, fit, prefer, reward, sft, train
from ptjax.launch.arguments import add_overrides

NAME = "eval"
HELP = "evaluate the latest checkpoint of a workdir"
EPILOG = """\
examples:
  python -m ptjax.launch eval --workdir runs/demo
  python -m ptjax.launch eval --workdir runs/demo --config.eval.tasks_per_domain=200

The configuration is the one stored in the workdir; overrides change it for this call.
A run may be live meanwhile. Of supervised runs (sft, prefer, reward, bestofn, distill) it prints
what they measure on their held-out examples or tasks.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--workdir", required=True, metavar="DIR", help="directory of a run")
  add_overrides(parser)


def run(args: argparse.Namespace) -> int:
  path = Path(args.workdir)
  stored = path / "config.json"
  if not stored.is_file():
    raise ConfigError(f"{path} holds no config.json; give the --workdir of a run")
  text = stored.read_text()
  verb = verb_of(json.loads(text))
  experiment = with_overrides(from_json(verb.root(), text), args.overrides)
  if verb is not train:
    fit.evaluate(verb.trainer, experiment, path)
    return 0
  from ptjax.launch.progress import terminal_observer
  from ptjax.train import run as train_run

  train_run.evaluate(experiment, path, terminal_observer(experiment))
  return 0


def verb_of(config: Mapping[str, Any]) -> ModuleType:
  """The verb that a stored configuration is of: the one whose fields it has, or nearly has.

  A configuration that an older version stored may lack fields of today.
  """

  def differing(verb: ModuleType) -> int:
    return len({field.name for field in dataclasses.fields(verb.root())} ^ config.keys())

  return min((train, sft, prefer, reward, bestofn, distill), key=differing)
