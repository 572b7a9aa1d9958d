"""Supervised fine-tuning of SmolLM2-135M-Instruct on conversations.

  python -m ptjax.launch sft --config configs/sft_smollm2.py --workdir runs/sft \
      --config.data.path=conversations.jsonl

Each line of the file is {"messages": [{"role": ..., "content": ...}, ...]}; the assistant's turns
are trained on. Hardware: 2 CPU cores, 8 GB. A tenth of the prompts is held out and measured before
and after.
"""

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.config import to_config_dict
from ptjax.experience.packing import PackConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.sft import ConversationsConfig, SFTExperiment
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    SFTExperiment(
      name="sft_smollm2",
      data=ConversationsConfig(path="conversations.jsonl"),
      pack=PackConfig(length=384, actions=256, rows=2),
      fit=FitConfig(num_steps=50, batch_size=16, eval_every=25),
      optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=2, schedule="cosine"),
      checkpoint=CheckpointConfig(every=25),
    )
  )
