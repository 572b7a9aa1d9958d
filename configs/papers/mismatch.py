"""A sampler that differs from the trainer, and truncated importance weights (Yao et al. 2025).

  python -m ptjax.launch sweep --config configs/papers/mismatch.py \
      --sweep configs/papers/mismatch.py --workdir runs/papers/mismatch

Source: Yao et al. 2025, Your efficient RL framework secretly brings you off-policy RL training
(TIS), and FlashRL, whose sampler is quantised.

Claim: trained on samples of a quantised sampler as if they were its own, the policy learns less;
weights min(trainer / sampler, 2) a token bring most of it back.

Hardware: 1 CPU core. Time: 15 to 45 s a run, 5 minutes. Expected: evaluated with an exact sampler,
the rounded arm ends far below the exact one, the one with TIS near it. Seen (docs/papers.md): so it
is. The curve of what the rounded sampler itself gets says the opposite.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs.papers.common import SEEDS, addends
from ptjax.core.config import to_config_dict
from ptjax.train.experiment import RLConfig
from ptjax.train.optimizer import OptimizerConfig

BITS = 3
# The sampler is meant to be off: the contract has to let it pass.
ROUNDED = {"engine.weight_bits": BITS, "rl.contract_tolerance": 100.0}
ARMS: dict[str, dict[str, Any]] = {
  "exact sampler": {},
  "rounded": ROUNDED,
  "rounded, TIS": ROUNDED | {"rl.objective.correction.kind": "tis_token"},
}


def get_config() -> ConfigDict:
  rl = RLConfig(num_steps=100, prompts_per_step=16)
  optimizer = OptimizerConfig(learning_rate=5e-4)
  return to_config_dict(addends("exact sampler", rl, answer=8, optimizer=optimizer))


def get_sweep() -> Iterator[dict[str, Any]]:
  for name, arm in ARMS.items():
    for seed in SEEDS:
      yield {"name": name, "seed": seed, **arm}
