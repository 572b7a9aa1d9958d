"""Supervised fine-tuning of SmolLM2-135M-Instruct on conversations.

  python -m ptjax.launch sft --config configs/sft_smollm2.py --workdir runs/sft \
      --config.data.sources.0.sha256=HASH

Each line of conversations.jsonl is {"messages": [{"role": ..., "content": ...}, ...]}; the
assistant's turns are trained on. Without the right hash the run says what it should be. A tenth of
the prompts is held out and measured before and after. Hardware: 2 CPU cores, 8 GB.
"""

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.data.config import DataConfig, SourceConfig
from ptjax.experience.packing import PackConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.sft import SFTExperiment
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    SFTExperiment(
      name="sft_smollm2",
      data=DataConfig(
        sources=(
          SourceConfig(
            name="conversations",
            files=("conversations.jsonl",),
            license="CC0-1.0",
            origin="written by the user of this file",
          ),
        )
      ),
      pack=PackConfig(length=384, actions=256, rows=2),
      fit=FitConfig(num_steps=50, batch_size=16, eval_every=25),
      optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=2, schedule="cosine"),
      checkpoint=CheckpointConfig(every=25),
    )
  )
