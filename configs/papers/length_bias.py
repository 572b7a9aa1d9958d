"""Length bias of GRPO's normaliser (Liu et al. 2025, Understanding R1-Zero-like training, 3.1).

  python -m ptjax.launch sweep --config configs/papers/length_bias.py \
      --sweep configs/papers/length_bias.py --workdir runs/papers/length_bias

Claim: GRPO divides the loss of an answer by its length, so that a long wrong answer is punished
less a token than a short one: wrong answers grow. Dr. GRPO (and RLOO), which divide by a constant,
do not.

Hardware: 1 CPU core. Time: 30 s a run, 8 minutes. Expected: the length of wrong answers rises in
the arms of GRPO and stays in the others. Seen (docs/papers.md): it does where wrong answers alone
train; in the whole objective GRPO and Dr. GRPO end alike.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs.papers.common import SEEDS, addends
from ptjax.core.config import to_config_dict
from ptjax.train.experiment import RLConfig
from ptjax.train.optimizer import OptimizerConfig

CONSTANT, BY_LENGTH = "seq_mean_token_sum_norm", "seq_mean_token_mean"
ARMS: dict[str, dict[str, Any]] = {
  "GRPO": {"rl.advantages": "grpo", "rl.aggregation": BY_LENGTH},
  "Dr. GRPO": {"rl.advantages": "dr_grpo", "rl.aggregation": CONSTANT},
  "RLOO": {"rl.advantages": "rloo", "rl.aggregation": CONSTANT},
}
# The bias shortens right answers as it lengthens wrong ones; without the right ones nothing opposes
# it, whatever the policy can tell of its answer.
WRONG_ONLY = {"rl.objective.positive_weight": 0.0}
ARMS |= {f"{name}, wrong only": ARMS[name] | WRONG_ONLY for name in ("GRPO", "Dr. GRPO")}


def get_config() -> ConfigDict:
  rl = RLConfig(num_steps=60, prompts_per_step=16)
  optimizer = OptimizerConfig(learning_rate=5e-4)
  return to_config_dict(addends("GRPO", rl, answer=24, optimizer=optimizer))


def get_sweep() -> Iterator[dict[str, Any]]:
  for name, arm in ARMS.items():
    for seed in SEEDS:
      yield {"name": name, "seed": seed, **arm}
