"""Trains a reward model on annotated pairs; the same command in the same workdir resumes."""

import argparse

from ptjax.launch.arguments import add_run_arguments, load_config
from ptjax.launch.fit import run_in_workdir

NAME = "reward"
HELP = "train a reward model on annotated pairs"
EPILOG = """\
examples:
  python -m ptjax.launch reward --config configs/reward_smollm2.py --workdir runs/reward \\
      --config.data.path=pairs.jsonl
  python -m ptjax.launch reward --config configs/reward_smollm2.py --workdir runs/ensemble \\
      --config.data.path=pairs.jsonl --config.reward.members=5
  python -m ptjax.launch reward --config configs/reward_smollm2.py --workdir runs/process \\
      --config.data.path=steps.jsonl --config.steps=true --config.reward.members=1

The workdir receives config.json, metrics.jsonl, heldout.jsonl, checkpoints, and at the end the
directory reward_model: the weights, and a report with held-out accuracy and calibration.
"""


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.reward_model import RewardExperiment

  return RewardExperiment


def run(args: argparse.Namespace) -> int:
  experiment = load_config(args, root())
  from ptjax.train import process_reward, reward_model

  train = process_reward if experiment.steps else reward_model
  return run_in_workdir(train.run, experiment, args.workdir)
