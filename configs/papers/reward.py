"""The reward models of `configs/papers/overoptimisation.py`.

  python -m ptjax.launch reward --config configs/papers/reward.py \
      --workdir runs/papers/reward/0_100 \
      --config.data.path=runs/papers/pairs_0_100.jsonl

`python -m configs.papers.preferences reward` trains all six.
"""

from ml_collections import ConfigDict

from configs.papers.common import MODEL
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.experiment import ModelConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.reward_model import RewardExperiment, RewardModelConfig
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    RewardExperiment(
      name="papers_reward",
      data=PairsConfig(path="runs/papers/pairs_0_100.jsonl"),
      reward=RewardModelConfig(),
      model=ModelConfig(MODEL, remat="none"),
      pack=PackConfig(length=256, actions=16, rows=4),
      fit=FitConfig(num_steps=120, batch_size=16),
      optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=10, schedule="linear"),
      checkpoint=CheckpointConfig(every=10_000),
    )
  )
