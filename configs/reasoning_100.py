"""GRPO on SmolLM2-135M-Instruct over all 100 reasoning-gym domains, with shares that move.

  python -m ptjax.launch train --config configs/reasoning_100.py --workdir runs/reasoning_100

Hardware: 2 CPU cores, 12 GB. 200 steps of 20 tasks: each domain sets 40, more or fewer as its share
moves. Time: not known, it was not run to its end; docs/oversight.md says what was. SmolLM2 seldom
writes its answer between tags: set model.source to one that was fine-tuned to.
"""

from ml_collections import ConfigDict

from ptjax.core.config import to_config_dict
from ptjax.domains.reasoning import DOMAINS
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.balance import BalanceConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, RLConfig
from ptjax.train.optimizer import OptimizerConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    Experiment(
      name="reasoning_100",
      domains=tuple(DomainConfig(name) for name in DOMAINS),
      policy=PolicyConfig(max_new_tokens=64, skip_long_prompts=True),
      engine=EngineConfig(num_slots=32, max_length=1536, decode_chunk=8, adaptive=True),
      pack=PackConfig(length=1536, actions=320, rows=1),
      rl=RLConfig(
        num_steps=200,
        prompts_per_step=20,
        group_size=4,
        aggregation="domain_balanced",
        balance=BalanceConfig(),
        domain_norm=True,
        reference=True,
        kl_episodes=1,
      ),
      optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=10),
      eval=EvalConfig(tasks_per_domain=4),
    )
  )
