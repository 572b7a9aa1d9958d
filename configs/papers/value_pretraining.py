"""Value pre-training (Yuan et al. 2025, VC-PPO, 3.1 and VAPO, Yue et al. 2025, 4.1).

  python -m ptjax.launch sweep --config configs/papers/value_pretraining.py \
      --sweep configs/papers/value_pretraining.py --workdir runs/papers/value_pretraining

Claim: PPO whose critic starts untrained is misled at first by its advantages; a critic that has
learned the values of the starting policy before the policy moves does better from the first update
on. The arms take the same number of policy updates.

Hardware: 1 CPU core. Time: 40 s a run, 4 minutes. Expected: a higher pass rate in the first
updates. Not run to its end yet.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs.papers.common import SEEDS, addends
from ptjax.core.config import to_config_dict
from ptjax.train.experiment import CriticConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig

POLICY_STEPS, WARMUP = 60, 30
ARMS: dict[str, dict[str, Any]] = {
  "no pre-training": {"rl.num_steps": POLICY_STEPS},
  "value pre-training": {"rl.num_steps": POLICY_STEPS + WARMUP, "critic.warmup_steps": WARMUP},
}


def get_config() -> ConfigDict:
  return to_config_dict(
    addends(
      "no pre-training",
      RLConfig(num_steps=POLICY_STEPS, prompts_per_step=16, advantages="gae"),
      answer=24,
      optimizer=OptimizerConfig(learning_rate=5e-4),
      critic=CriticConfig(
        clip=None, lam=1.0, lam_policy=0.95, optimizer=OptimizerConfig(learning_rate=1e-3)
      ),
    )
  )


def get_sweep() -> Iterator[dict[str, Any]]:
  for name, arm in ARMS.items():
    for seed in SEEDS:
      yield {"name": name, "seed": seed, **arm}
