"""Distils a teacher on the student's own answers; the same command resumes."""

import argparse

from ptjax.launch.arguments import add_run_arguments, load_config
from ptjax.launch.fit import run_in_workdir

NAME = "distill"
HELP = "learn from a teacher on the student's own answers"
EPILOG = """\
examples:
  python -m ptjax.launch distill --config configs/distill_smollm2.py --workdir runs/distill \\
      --config.teacher.source=SmolLM2-360M-Instruct
  python -m ptjax.launch distill --config configs/distill_smollm2.py --workdir runs/forward \\
      --config.teacher.source=SmolLM2-360M-Instruct --config.divergence=forward_kl

The workdir receives config.json, metrics.jsonl, heldout.jsonl and checkpoints. SIGTERM saves a
checkpoint and exits with status 75: run the same command again.
"""


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.distill import DistillExperiment

  return DistillExperiment


def run(args: argparse.Namespace) -> int:
  experiment = load_config(args, root())
  from ptjax.train import distill

  return run_in_workdir(distill.run, experiment, args.workdir)
