"""What the verbs of supervised training share: root, workdir, terminal, exit status, evaluation.

A verb names its `Trainer`, the dataclass that a configuration makes and the function that runs it,
in a function: JAX is imported when a verb runs.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptjax.launch import workdir
from ptjax.launch.arguments import load_config
from ptjax.launch.train import EXIT_PREEMPTED, keep_traceback, write_config

_SHOWN = (
  ("optim/loss", "loss"),
  ("optim/grad_norm", "grad"),
  ("preference/accuracy", "accuracy"),
  ("reward_model/accuracy", "accuracy"),
  ("reward/mean", "reward"),
  ("bestofn/kept", "kept"),
)


Trainer = tuple[type, Callable[..., None]]


def entry_points(
  trainer: Callable[[], Trainer],
) -> tuple[Callable[[], type], Callable[[argparse.Namespace], int]]:
  """`root` and `run` of the verb whose dataclass and function `trainer` imports."""

  def root() -> type:
    """The dataclass that a configuration of this verb makes."""
    return trainer()[0]

  def run(args: argparse.Namespace) -> int:
    experiment = load_config(args, root())
    return run_in_workdir(trainer()[1], experiment, args.workdir)

  return root, run


def evaluate(trainer: Callable[[], Trainer], experiment: Any, path: Path) -> None:
  """Prints what the newest checkpoint of a workdir reaches on the held-out examples."""
  from ptjax.train import supervised

  observer = terminal_observer(experiment.fit.num_steps)
  trainer()[1](experiment, path, observer, supervised.evaluate)


def run_in_workdir(run: Callable[..., None], experiment: Any, directory: str) -> int:
  """`run(experiment, workdir, observer)` in a workdir held meanwhile; returns the exit status."""
  with workdir.hold(directory) as path:
    from ptjax.train.run import Preempted

    write_config(experiment, path)
    try:
      with keep_traceback(path / "error.log"):
        run(experiment, path, terminal_observer(experiment.fit.num_steps))
    except Preempted as preempted:
      print(f"ptjax: {preempted}; run the same command again to go on", file=sys.stderr)
      return EXIT_PREEMPTED
    print(f"metrics: {Path(path) / 'metrics.jsonl'}")
  return 0


def terminal_observer(num_steps: int):
  """One line a step, and one a held-out evaluation, on standard output."""
  from ptjax.train.supervised import FitObserver

  def on_step(step: int, record: dict[str, Any]) -> None:
    parts = [f"step {step + 1}/{num_steps}"]
    parts += [f"{title} {_number(record[name])}" for name, title in _SHOWN if name in record]
    parts.append(f"{record['perf/train_tokens_per_s']:.0f} tokens/s")
    print("  ".join(parts), flush=True)

  def on_heldout(when: str, result: dict[str, Any]) -> None:
    values = "  ".join(f"{name} {_number(value)}" for name, value in sorted(result.items()))
    print(f"held out, {when}: {values or 'no examples'}", flush=True)

  return FitObserver(lambda line: print(line, flush=True), on_step, on_heldout)


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.4g}"
