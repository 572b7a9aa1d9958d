"""Distils a teacher on the student's own answers; the same command resumes."""

from ptjax.launch.arguments import add_run_arguments
from ptjax.launch.fit import Trainer, entry_points

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


def trainer() -> Trainer:
  from ptjax.train import distill

  return distill.DistillExperiment, distill.run


add_arguments = add_run_arguments
root, run = entry_points(trainer)
