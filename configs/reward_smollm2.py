"""A reward model on the first 12 layers of SmolLM2-135M-Instruct, from annotated pairs.

  python -m ptjax.launch reward --config configs/reward_smollm2.py --workdir runs/reward \
      --config.data.path=pairs.jsonl

The schema of the file stands in `ptjax/data/annotated_pairs.py`; a few hundred pairs a domain do.
Hardware: 2 CPU cores, 8 GB. Held-out accuracy and calibration are printed, and kept in
`<workdir>/reward_model`.

On the 400 sums of `python -m configs.data.arithmetic_pairs`, with a fifth of the questions held out
(`--config.data.heldout=0.2`, 90 comparisons), it does not learn to add in 50 updates: accuracy
0.567 before and after (95% interval 0.46 to 0.66), log-loss 0.687 to 0.667, calibration error 0.06.
It took 185 s of CPU time and 4.3 GB; seed 0.
"""

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.reward_model import RewardExperiment, RewardModelConfig
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    RewardExperiment(
      name="reward_smollm2",
      data=PairsConfig(path="pairs.jsonl"),
      reward=RewardModelConfig(num_layers=12, members=3),
      # Two scores a pair: few slots.
      pack=PackConfig(length=384, actions=16, rows=2),
      fit=FitConfig(num_steps=50, batch_size=16, eval_every=25),
      optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5, schedule="linear"),
      checkpoint=CheckpointConfig(every=25),
    )
  )
