"""Over-optimisation of a reward model (Gao et al. 2022, Scaling laws for reward model
overoptimization).

  python -m configs.papers.preferences pairs && python -m configs.papers.preferences reward
  python -m ptjax.launch sweep --config configs/papers/overoptimisation.py \
      --sweep configs/papers/overoptimisation.py --workdir runs/papers/overoptimisation

The policy is trained on the score of a reward model that has seen 100 or 2,000 pairs; whether its
answers are right, the gold reward, is only recorded. Claim: as the policy moves away from its
start (KL), the proxy reward goes on rising, while the gold reward rises and then falls; with more
data for the reward model it falls later or not at all.

Hardware: 1 CPU core. Time: 40 s a run, 6 minutes with the reward models. Expected: the curve of the
gold reward over the KL bends down in the arm of 100 pairs. Not run to its end yet.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs.papers.common import SEEDS, addends
from configs.papers.preferences import FEW, MANY, reward_workdir
from ptjax.core.config import to_config_dict
from ptjax.experience.mixture import DomainConfig
from ptjax.rewards.judge import JudgeConfig
from ptjax.train.experiment import RLConfig
from ptjax.train.optimizer import OptimizerConfig

ARMS = {f"{count:,} pairs": count for count in (FEW, MANY)}


def get_config() -> ConfigDict:
  return to_config_dict(
    addends(
      f"{FEW} pairs",
      RLConfig(num_steps=100, prompts_per_step=16, reference=True),
      answer=24,
      optimizer=OptimizerConfig(learning_rate=5e-4),
      domains=(
        DomainConfig("addends", judge=JudgeConfig(str(reward_workdir(0, FEW)), weight=1.0)),
      ),
    )
  )


def get_sweep() -> Iterator[dict[str, Any]]:
  for name, count in ARMS.items():
    for seed in SEEDS:
      model = str(reward_workdir(seed, count))
      yield {"name": name, "seed": seed, "domains.0.judge.workdir": model}
