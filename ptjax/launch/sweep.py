"""Runs a configuration once for each set of overrides that a Python file yields."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ptjax.core.config import ConfigError, call_in_file, mapping_overrides, with_overrides
from ptjax.launch.arguments import add_config_arguments, load_config
from ptjax.launch.train import EXIT_PREEMPTED, train

NAME = "sweep"
HELP = "run a configuration for each set of overrides of a sweep file"
EPILOG = """\
a sweep file:
  def get_sweep():
    for seed in range(3):
      for kl_coef in (0.0, 0.01):
        yield {"seed": seed, "rl.kl_coef": kl_coef}

examples:
  python -m ptjax.launch sweep --sweep my_sweep.py --config configs/demo_smollm2.py \\
      --workdir runs/sweep
  python -m ptjax.launch sweep --sweep my_sweep.py --config configs/demo_smollm2.py \\
      --workdir runs/sweep --index $SLURM_ARRAY_TASK_ID

Run i trains in DIR/i (000, 001, ...), in a process of its own, and resumes there when the
command is given again. All sets are checked before the first run starts.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add_config_arguments(parser)
  parser.add_argument("--sweep", required=True, metavar="FILE", help="file with get_sweep()")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="parent of the runs")
  parser.add_argument("--index", type=int, metavar="I", help="only this run, in this process")


def run(args: argparse.Namespace) -> int:
  from ptjax.train.experiment import Experiment

  sets = load_sweep(args.sweep)
  base = load_config(args, Experiment)
  experiments = [apply_set(base, i, overrides) for i, overrides in enumerate(sets)]
  if args.index is not None:
    if not 0 <= args.index < len(sets):
      raise ValueError(f"--index {args.index} is outside the sweep; use 0 to {len(sets) - 1}")
    return train(experiments[args.index], run_directory(args.workdir, args.index))
  _print_sets(sets)
  for index in range(len(sets)):
    status = _run_process(args, index)
    if status:
      if status != EXIT_PREEMPTED:
        print(f"ptjax: run {index} of the sweep ended with status {status}", file=sys.stderr)
      return status
  return 0


def load_sweep(file: str) -> list[Mapping[str, Any]]:
  """The override sets of a sweep file, in order.

  Raises:
    ConfigError: no such file, no get_sweep(), an exception in it, or no set at all.
  """
  sets = list(call_in_file(file, "get_sweep"))
  for i, overrides in enumerate(sets):
    if not isinstance(overrides, Mapping):
      raise ConfigError(f"{file}: set {i} is {overrides!r}; yield dicts such as {{'seed': 1}}")
  if not sets:
    raise ConfigError(f"{file}: get_sweep() yields nothing; yield one dict a run")
  return sets


def apply_set(base: Any, index: int, overrides: Mapping[str, Any]) -> Any:
  try:
    return with_overrides(base, mapping_overrides(overrides))
  except ConfigError as error:
    raise ConfigError(f"set {index} of the sweep: {error}") from error


def run_directory(workdir: str, index: int) -> Path:
  return Path(workdir) / f"{index:03d}"


def _run_process(args: argparse.Namespace, index: int) -> int:
  """One run in a process of its own, so that devices and memory are free before the next."""
  command = [sys.executable, "-m", "ptjax.launch", *args.argv, "--index", str(index)]
  with subprocess.Popen(command) as process:
    # Schedulers signal the parent alone; the child saves its checkpoint and answers 75.
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
      return process.wait()
    finally:
      signal.signal(signal.SIGTERM, previous)


def _print_sets(sets: list[Mapping[str, Any]]) -> None:
  keys = list(dict.fromkeys(key for overrides in sets for key in overrides))
  table = Table("run", *keys, title="sweep")
  for i, overrides in enumerate(sets):
    table.add_row(f"{i:03d}", *(str(overrides.get(key, "")) for key in keys))
  Console().print(table)
