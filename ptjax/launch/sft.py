"""Fine-tunes on conversations; the same command in the same workdir resumes."""

from ptjax.launch.arguments import add_run_arguments
from ptjax.launch.fit import Trainer, entry_points

NAME = "sft"
HELP = "fine-tune on conversations"
EPILOG = """\
examples:
  python -m ptjax.launch sft --config configs/sft_smollm2.py --workdir runs/sft \\
      --config.data.sources.0.sha256=HASH
  python -m ptjax.launch sft --config configs/sft_smollm2.py --workdir runs/sft1 \\
      --config.data.sources.0.sha256=HASH --config.optimizer.learning_rate=3e-5

The workdir receives config.json, metrics.jsonl, heldout.jsonl and checkpoints. SIGTERM saves a
checkpoint and exits with status 75: run the same command again.
"""


def trainer() -> Trainer:
  from ptjax.train import sft

  return sft.SFTExperiment, sft.run


add_arguments = add_run_arguments
root, run = entry_points(trainer)
