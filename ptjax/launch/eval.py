"""Evaluates the latest checkpoint of a workdir on what its run holds out: tasks, or examples.

With --config it evaluates a model on long contexts instead, and keeps its answers in the workdir.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ptjax.core.config import ConfigError, from_json, with_overrides
from ptjax.launch import bestofn, distill, fit, prefer, reward, sft, train, workdir
from ptjax.launch.arguments import add_config_arguments, load_config

NAME = "eval"
HELP = "evaluate the latest checkpoint of a workdir"
EPILOG = """\
examples:
  python -m ptjax.launch eval --workdir runs/demo
  python -m ptjax.launch eval --workdir runs/demo --config.eval.tasks_per_domain=200
  python -m ptjax.launch eval --config configs/eval_ruler.py --workdir runs/ruler

Without --config, the configuration is the one stored in the workdir; overrides change it for this
call. A run may be live meanwhile. Of supervised runs (sft, prefer, reward, bestofn, distill) it
prints what they measure on their held-out examples or tasks.

With --config: RULER, needles, "lost in the middle" and filings (docs/evals.md) on any model. The
workdir receives results.jsonl, summary.json, summary.md, report.html and pictures; the same command
goes on where it was stopped, and more lengths or samples go on from what is there.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--workdir", required=True, metavar="DIR", help="directory of a run")
  add_config_arguments(parser)


def root() -> type:
  """The dataclass that a configuration of `eval --config` makes."""
  from ptjax.evals.context_config import ContextEval

  return ContextEval


def run(args: argparse.Namespace) -> int:
  if args.config or args.gin_file or args.gin_bindings:
    return long_contexts(load_config(args, root()), args.workdir)
  path = Path(args.workdir)
  stored = path / "config.json"
  if not stored.is_file():
    raise ConfigError(f"{path} holds no config.json; give the --workdir of a run")
  text = stored.read_text()
  if {field.name for field in dataclasses.fields(root())} == json.loads(text).keys():
    return long_contexts(with_overrides(from_json(root(), text), args.overrides), args.workdir)
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


def long_contexts(config: Any, directory: str) -> int:
  """Answers what the workdir lacks, then writes tables and pictures; returns the exit status.

  Raises:
    ConfigError: the workdir holds answers of another model, or to other problems.
  """
  with workdir.hold(directory) as path:
    stored = path / "config.json"
    if stored.is_file() and from_json(type(config), stored.read_text()).setting != config.setting:
      raise ConfigError(
        f"{path} holds answers of another model, seed or way to ask; choose another --workdir"
      )
    train.write_config(config, path)
    from ptjax.evals import context_run, context_table
    from ptjax.report.context_page import write_outputs

    def on_record(done: int, wanted: int, record: Mapping[str, Any]) -> None:
      print(f"{done}/{wanted}  {record['score']:.2f}  {record['key']}", flush=True)

    records = context_run.evaluate(config, path, on_record)
    summary = context_table.summarize(config, records)
    print(context_table.to_markdown(summary))
    names = write_outputs(summary, records, path)
    print(f"written to {path}: {', '.join(names)}")
  return 0
