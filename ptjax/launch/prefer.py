"""Trains on preferences (DPO, IPO, KTO, SimPO, ORPO); the same command resumes."""

import argparse

from ptjax.launch.arguments import add_run_arguments, load_config
from ptjax.launch.fit import run_in_workdir

NAME = "prefer"
HELP = "train on preferences: DPO, IPO, KTO, SimPO, ORPO"
EPILOG = """\
examples:
  python -m ptjax.launch prefer --config configs/dpo_smollm2.py --workdir runs/dpo \\
      --config.data.path=pairs.jsonl
  python -m ptjax.launch prefer --config configs/dpo_smollm2.py --workdir runs/simpo \\
      --config.data.path=pairs.jsonl --config.objective.loss=simpo --config.objective.beta=2

The workdir receives config.json, metrics.jsonl, heldout.jsonl and checkpoints. SIGTERM saves a
checkpoint and exits with status 75: run the same command again.
"""


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.preference import PreferenceExperiment

  return PreferenceExperiment


def run(args: argparse.Namespace) -> int:
  experiment = load_config(args, root())
  from ptjax.train import preference

  return run_in_workdir(preference.run, experiment, args.workdir)
