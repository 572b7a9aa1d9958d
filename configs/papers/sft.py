"""SFT on the better answers of pairs, the other arm of `python -m configs.papers.preferences dpo`.

  python -m ptjax.launch sft --config configs/papers/sft.py --workdir runs/papers/dpo/sft_0 \
      --config.data.sources.0.sha256=HASH
"""

from ml_collections import ConfigDict

from configs.papers.common import MODEL
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
      name="papers_sft",
      data=DataConfig(
        sources=(
          SourceConfig(
            name="chosen",
            files=("runs/papers/chosen_0.jsonl",),
            license="CC0-1.0",
            origin="configs/papers/preferences.py",
          ),
        )
      ),
      heldout=HeldoutConfig(share=0.1),
      model=ModelConfig(MODEL, remat="none"),
      pack=PackConfig(length=256, actions=192, rows=4),
      fit=FitConfig(num_steps=120, batch_size=16),
      optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=10, schedule="linear"),
      checkpoint=CheckpointConfig(every=10_000),
    )
  )
