"""The tiny model of this directory: 0.18M parameters, bytes, taught by examples.

  python -m configs.papers.prepare

writes its random start and its examples, runs

  python -m ptjax.launch sft --config configs/papers/pretrain.py --workdir runs/papers/pretrain

with their hash, and exports the result to runs/papers/base. Of its examples three in ten are
wrong. A mark after an answer says in nine cases of ten whether it is right; how much filler follows
has nothing to do with that.
"""

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.data.config import DataConfig, SourceConfig
from ptjax.experience.packing import PackConfig
from ptjax.train.experiment import ModelConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.sft import HeldoutConfig, SFTExperiment
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    SFTExperiment(
      name="papers_pretrain",
      model=ModelConfig("runs/papers/start", remat="none"),
      data=DataConfig(
        sources=(
          SourceConfig(
            name="addends",
            files=("runs/papers/examples.jsonl",),
            license="CC0-1.0",
            origin="configs/papers/prepare.py",
          ),
        )
      ),
      heldout=HeldoutConfig(share=0.02),
      pack=PackConfig(length=240, actions=192, rows=12),
      fit=FitConfig(num_steps=1500, batch_size=128),
      optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=50, schedule="cosine"),
      checkpoint=CheckpointConfig(every=10_000),
    )
  )
