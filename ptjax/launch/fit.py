"""What the verbs of supervised training share: the workdir, the terminal, the exit status."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptjax.launch import workdir
from ptjax.launch.train import EXIT_PREEMPTED, keep_traceback, write_config

_SHOWN = (
  ("optim/loss", "loss"),
  ("optim/grad_norm", "grad"),
  ("preference/accuracy", "accuracy"),
  ("reward_model/accuracy", "accuracy"),
  ("reward/mean", "reward"),
  ("bestofn/kept", "kept"),
)


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
