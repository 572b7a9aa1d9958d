"""DPO on SmolLM2-135M-Instruct from annotated pairs.

  python -m ptjax.launch prefer --config configs/dpo_smollm2.py --workdir runs/dpo \
      --config.data.path=pairs.jsonl

The schema of the file stands in `ptjax/data/annotated_pairs.py`. Hardware: 2 CPU cores, 8 GB.
`--config.objective.loss` takes ipo, kto, simpo and orpo too; simpo wants a beta of 2 and more.

On the 400 sums of `python -m configs.data.arithmetic_pairs`, with a fifth of the questions held out
(`--config.data.heldout=0.2`, 90 comparisons): accuracy 0.989 after 25 and 0.978 after 50 updates,
loss 0.693 to 0.257, margin 0 to 14.1. It took 508 s of CPU time and 6.8 GB; seed 0. As DPO does,
it lowers the log-probs of both: of right sums from -4.7 to -9.1 nats, of wrong ones from -13.7 to
-32.1.
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
