"""DPO on SmolLM2-135M-Instruct from annotated pairs.

  python -m ptjax.launch prefer --config configs/dpo_smollm2.py --workdir runs/dpo \
      --config.data.path=pairs.jsonl

The schema of the file stands in `ptjax/data/annotated_pairs.py`. Hardware: 2 CPU cores, 8 GB.
`--config.objective.loss` takes ipo, kto, simpo and orpo too; simpo wants a beta of 2 and more.
"""

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.preference import PreferenceExperiment, PreferenceObjective
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    PreferenceExperiment(
      name="dpo_smollm2",
      data=PairsConfig(path="pairs.jsonl"),
      objective=PreferenceObjective(loss="dpo"),
      pack=PackConfig(length=384, actions=256, rows=2),
      fit=FitConfig(num_steps=50, batch_size=16, eval_every=25),
      optimizer=OptimizerConfig(learning_rate=5e-6, warmup_steps=5, schedule="linear"),
      checkpoint=CheckpointConfig(every=25),
    )
  )
