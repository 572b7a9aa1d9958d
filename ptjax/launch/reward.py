"""Trains a reward model on annotated pairs; the same command in the same workdir resumes."""

from ptjax.launch.arguments import add_run_arguments
from ptjax.launch.fit import Trainer, entry_points

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


def trainer() -> Trainer:
  from ptjax.train import process_reward, reward_model

  def run(experiment, *args) -> None:
    (process_reward if experiment.steps else reward_model).run(experiment, *args)

  return reward_model.RewardExperiment, run


add_arguments = add_run_arguments
root, run = entry_points(trainer)
