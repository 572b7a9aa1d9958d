"""Fine-tunes on conversations; the same command in the same workdir resumes."""

import argparse

from ptjax.launch.arguments import add_run_arguments, load_config
from ptjax.launch.fit import run_in_workdir

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


add_arguments = add_run_arguments


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.sft import SFTExperiment

  return SFTExperiment


def run(args: argparse.Namespace) -> int:
  experiment = load_config(args, root())
  from ptjax.train import sft

  return run_in_workdir(sft.run, experiment, args.workdir)
