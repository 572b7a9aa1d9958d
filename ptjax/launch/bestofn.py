"""Learns from the best of n answers to each task; the same command resumes."""

from ptjax.launch.arguments import add_run_arguments
from ptjax.launch.fit import Trainer, entry_points

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


def trainer() -> Trainer:
  from ptjax.train import best_of_n

  return best_of_n.BestOfNExperiment, best_of_n.run


add_arguments = add_run_arguments
root, run = entry_points(trainer)
