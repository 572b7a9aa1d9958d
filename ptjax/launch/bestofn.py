"""Learns from the best of n answers to each task; the same command resumes."""

import argparse

from ptjax.launch.arguments import add_run_arguments, load_config
from ptjax.launch.fit import run_in_workdir

NAME = "bestofn"
HELP = "fine-tune on the best of n sampled answers"
EPILOG = """\
examples:
  python -m ptjax.launch bestofn --config configs/best_of_n_smollm2.py --workdir runs/bestofn
  python -m ptjax.launch bestofn --config configs/best_of_n_smollm2.py --workdir runs/best16 \\
      --config.rollout.group_size=16 --config.best.keep=2

The workdir receives config.json, metrics.jsonl, heldout.jsonl and checkpoints. SIGTERM saves a
checkpoint and exits with status 75: run the same command again.
"""


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.best_of_n import BestOfNExperiment

  return BestOfNExperiment


def run(args: argparse.Namespace) -> int:
  experiment = load_config(args, root())
  from ptjax.train import best_of_n

  return run_in_workdir(best_of_n.run, experiment, args.workdir)
