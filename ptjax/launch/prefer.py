"""Trains on preferences (DPO, IPO, KTO, SimPO, ORPO); the same command resumes."""

from ptjax.launch.arguments import add_run_arguments
from ptjax.launch.fit import Trainer, entry_points

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


def trainer() -> Trainer:
  from ptjax.train import preference

  return preference.PreferenceExperiment, preference.run


add_arguments = add_run_arguments
root, run = entry_points(trainer)
