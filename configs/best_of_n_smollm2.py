"""Rejection-sampling fine-tuning of SmolLM2-135M-Instruct on the demo's tasks.

  python -m ptjax.launch bestofn --config configs/best_of_n_smollm2.py --workdir runs/bestofn

Each step answers 8 tasks 8 times and learns from the best passed answer of each. Without a sandbox:
`--config configs/best_of_n_smollm2.py:arithmetic`. Hardware: 2 CPU cores, 12 GB.

On arithmetic alone, 8 steps (`--config.fit.num_steps=8`): held-out pass rate 16% to 68% (of 50
tasks), mean reward of the samples 0.18 to 0.93. It took 131 s of CPU time and 6.9 GB; seed 0.
"""

from ml_collections import ConfigDict

from ptjax.core.config import to_config_dict
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.best_of_n import BestOfNExperiment
from ptjax.train.on_policy import RolloutConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.supervised import FitConfig


def get_config(domains: str = "code,arithmetic") -> ConfigDict:
  return to_config_dict(
    BestOfNExperiment(
      name="best_of_n_smollm2",
      rollout=RolloutConfig(
        domains=tuple(DomainConfig(name) for name in domains.split(",")),
        group_size=8,
        policy=PolicyConfig(max_new_tokens=40),
        engine=EngineConfig(num_slots=64, max_length=128, decode_chunk=8, adaptive=True),
      ),
      pack=PackConfig(length=384, actions=256, rows=2),
      fit=FitConfig(num_steps=15, batch_size=8),
      optimizer=OptimizerConfig(learning_rate=3e-5, warmup_steps=2),
    )
  )
