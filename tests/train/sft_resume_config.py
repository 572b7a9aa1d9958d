"""A short fine-tuning of a tiny model, which can be made to die after a chosen update.

  python -m ptjax.launch sft --config tests/train/sft_resume_config.py:FILE --workdir DIR \\
      --config.model.source=MODEL

The variable PTJAX_TEST_FAULT holds `SIGNAL:UPDATE`.
"""

import os
import signal
import sys
from pathlib import Path

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.networks import Trainer
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.sft import HeldoutConfig, SFTExperiment
from ptjax.train.supervised import FitConfig

sys.path.insert(0, str(Path(__file__).parent))

from fit_toys import source_config

FAULT = "PTJAX_TEST_FAULT"


def get_config(data: str) -> ConfigDict:
  if FAULT in os.environ:
    name, number = os.environ[FAULT].split(":")
    _die_after(int(number), signal.Signals[name])
  return to_config_dict(
    SFTExperiment(
      name="sft_resume",
      data=source_config(Path(data)),
      heldout=HeldoutConfig(0.3),
      pack=PackConfig(length=96, actions=48, rows=2),
      fit=FitConfig(num_steps=7, batch_size=6, eval_every=3),
      optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=2, schedule="cosine"),
      checkpoint=CheckpointConfig(every=2),
    )
  )


def _die_after(number: int, signum: int) -> None:
  update = Trainer.update

  def faulty(trainer, state, batches):
    now = int(state.updates)
    result = update(trainer, state, batches)
    if now == number:
      os.kill(os.getpid(), signum)
    return result

  Trainer.update = faulty
