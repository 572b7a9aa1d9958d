"""DPO on right against wrong answers, one arm of `python -m configs.papers.preferences dpo`.

python -m ptjax.launch prefer --config configs/papers/dpo.py --workdir runs/papers/dpo/dpo_0
"""

from ml_collections import ConfigDict

from configs.papers.common import MODEL
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.experiment import ModelConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.preference import PreferenceExperiment, PreferenceObjective
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    PreferenceExperiment(
      name="papers_dpo",
      data=PairsConfig(path="runs/papers/pairs_0_2000.jsonl"),
      objective=PreferenceObjective(loss="dpo", beta=0.1),
      model=ModelConfig(MODEL, remat="none"),
      pack=PackConfig(length=256, actions=192, rows=4),
      fit=FitConfig(num_steps=120, batch_size=16),
      optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=10, schedule="linear"),
      checkpoint=CheckpointConfig(every=10_000),
    )
  )
