"""Group-relative advantages, in float64 NumPy on the host: one reward per trajectory.

Rewards are few and errors must reach the caller at once, so none of this is traced.

A member counts when it has a reward (not None) and is valid (its rollout did not fail for a reason
that is not the model's). Members that do not count are left out of every sum and count and get
advantage exactly 0; their reward is never read. Pass them all the same: a group is judged by the
size it was sampled with. With r the rewards, n, mean and std (ddof 1) over the counting members of
one group:

  grpo                   (r - mean) / (std + eps)            Shao et al. 2024
  dr_grpo                r - mean                            Liu et al. 2025
  grpo_batch_std         (r - mean) / (std of the batch + eps)
  rloo                   r - mean of the other members       Ahmadian et al. 2024
  maxrl                  (r - mean) / mean                   MaxRL 2026
  reinforce_pp_baseline  r - mean, whitened over all tokens  Hu 2025, REINFORCE++-baseline

Constant rule, in all of them: a group whose members all lie within 1e-6 max(1, max|r|) of their
mean gets exactly 0. Rounding noise would otherwise be divided by itself.

All estimators have one signature, so that a config picks one by name in `ADVANTAGES`. Letters:
E trajectories (episodes), G groups.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from ptjax.algos.gae import discounted_returns
from ptjax.core.masked import CONSTANT_TOLERANCE, STD_EPS, masked_whiten


@dataclasses.dataclass(frozen=True)
class _Groups:
  """Checked rewards and their statistics; `_E` of a group statistic stands on its members."""

  reward_E: np.ndarray  # 0 where the member does not count
  counts_E: np.ndarray
  centred_E: np.ndarray  # r - mean of the group, 0 where not counting or the group is constant
  live_E: np.ndarray  # counts, and the group is not constant
  size_E: np.ndarray  # n, at least 1
  mean_E: np.ndarray
  std_E: np.ndarray


def _group(rewards_E, group_ids_E, valid_E) -> _Groups:
  """Checks the rewards and reduces them per group.

  Raises:
    ValueError: unequal lengths, a group of one, or a counting reward that is not finite.
  """
  group_ids_E = np.asarray(group_ids_E)
  valid_E = np.ones(len(group_ids_E), bool) if valid_E is None else np.asarray(valid_E, bool)
  if not len(rewards_E) == len(group_ids_E) == len(valid_E):
    raise ValueError(
      f"{len(rewards_E)} rewards, {len(group_ids_E)} group ids and {len(valid_E)} valid flags; "
      "give one of each per trajectory"
    )
  ids_G, group_E, members_G = np.unique(group_ids_E, return_inverse=True, return_counts=True)
  if np.any(members_G == 1):
    raise ValueError(
      f"group {ids_G[members_G == 1][0]} has one sample; a group baseline needs at least two"
    )
  counts_E = valid_E & np.array([r is not None for r in rewards_E], bool)
  reward_E = np.array([r if c else 0 for r, c in zip(rewards_E, counts_E, strict=True)], np.float64)
  if not np.all(np.isfinite(reward_E)):
    i = int(np.flatnonzero(~np.isfinite(reward_E))[0])
    raise ValueError(f"reward {i} is {reward_E[i]}; use None for a trajectory without a reward")

  def total(x_E):
    """Sum over the counting members of each group, on every member."""
    return np.bincount(group_E, np.where(counts_E, x_E, 0), len(ids_G))[group_E]

  def largest(x_E):
    out_G = np.zeros(len(ids_G))
    np.maximum.at(out_G, group_E, np.where(counts_E, x_E, 0))
    return out_G[group_E]

  size_E = np.maximum(total(np.ones_like(reward_E)), 1)
  mean_E = total(reward_E) / size_E
  centred_E = np.where(counts_E, reward_E - mean_E, 0)
  limit_E = CONSTANT_TOLERANCE * np.maximum(1, largest(np.abs(reward_E)))
  live_E = counts_E & (largest(np.abs(centred_E)) > limit_E)
  std_E = np.sqrt(total(centred_E**2) / np.maximum(size_E - 1, 1))
  return _Groups(reward_E, counts_E, np.where(live_E, centred_E, 0), live_E, size_E, mean_E, std_E)


def grpo(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """A_i = (r_i - mean) / (std + eps), the baseline and scale of the trajectory's own group.

  Args (the same for all estimators):
    rewards_E: float or None per trajectory.
    group_ids_E: trajectories of one prompt share an id; any order, any values.
    valid_E: false where the rollout failed through no fault of the model; None: all valid.
    lengths_E: trained tokens per trajectory; only reinforce_pp_baseline reads it.

  Returns:
    float64[E].

  Raises:
    ValueError: a group of one sample, a counting reward that is not finite, unequal lengths.
  """
  g = _group(rewards_E, group_ids_E, valid_E)
  return g.centred_E / (g.std_E + STD_EPS)


def dr_grpo(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """A_i = r_i - mean: no division, so no bias towards questions of low variance."""
  return _group(rewards_E, group_ids_E, valid_E).centred_E


def grpo_batch_std(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """A_i = (r_i - mean) / (std_B + eps), std_B the deviation of all counting raw rewards."""
  g = _group(rewards_E, group_ids_E, valid_E)
  counting = g.reward_E[g.counts_E]
  std = np.std(counting, ddof=1) if len(counting) > 1 else 0.0
  return g.centred_E / (std + STD_EPS)


def rloo(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """A_i = r_i - mean of the other counting members, computed as (r_i - mean) n / (n - 1)."""
  g = _group(rewards_E, group_ids_E, valid_E)
  return g.centred_E * g.size_E / np.maximum(g.size_E - 1, 1)


def maxrl(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """A_i = (r_i - mean) / mean, no eps: rare successes weigh more.

  Raises:
    ValueError: also for a negative counting reward.
  """
  g = _group(rewards_E, group_ids_E, valid_E)
  if np.any(g.reward_E < 0):
    i = int(np.flatnonzero(g.reward_E < 0)[0])
    raise ValueError(f"maxrl needs rewards >= 0, reward {i} is {g.reward_E[i]}; shift the rewards")
  # A group that is not constant has a positive reward, so its mean is positive.
  return g.centred_E / np.where(g.live_E, g.mean_E, 1)


def reinforce_pp_baseline(rewards_E, group_ids_E, valid_E=None, lengths_E=None) -> np.ndarray:
  """c_i = r_i - mean of the group, then whitened over the trained tokens of the batch.

  The mean and std are over all tokens of the counting trajectories, each token carrying its c_i, so
  a trajectory weighs as much as it has tokens.

  Raises:
    ValueError: also when `lengths_E` is missing.
  """
  if lengths_E is None:
    raise ValueError("reinforce_pp_baseline weighs by tokens: pass lengths_E, one per trajectory")
  g = _group(rewards_E, group_ids_E, valid_E)
  weight_E = np.where(g.counts_E, np.asarray(lengths_E, np.float64), 0)
  tokens = weight_E.sum()
  mean = (weight_E * g.centred_E).sum() / max(tokens, 1)
  std = np.sqrt((weight_E * (g.centred_E - mean) ** 2).sum() / max(tokens - 1, 1))
  whitened_E = (g.centred_E - mean) / (std + STD_EPS)
  return np.where(g.live_E & (tokens > 1), whitened_E, 0)


ADVANTAGES = {
  "grpo": grpo,
  "dr_grpo": dr_grpo,
  "grpo_batch_std": grpo_batch_std,
  "rloo": rloo,
  "maxrl": maxrl,
  "reinforce_pp_baseline": reinforce_pp_baseline,
}


def reinforce_pp(token_rewards_BT, mask_BT, gamma: float) -> tuple[jax.Array, jax.Array]:
  """Discounted returns per token, whitened over all trained tokens of the batch (Hu 2025).

  G_k = r_k + gamma G_{k+1} over the action tokens of a row, A = (G - mean) / (std + eps). The only
  estimator without groups, and the only one of this module that takes tokens and can be traced.

  Args:
    token_rewards_BT: reward per token, KL penalties included.
    mask_BT: action tokens; the others are skipped, without decay or reset.
    gamma: discount.

  Returns:
    (advantages f32[B, T], returns f32[B, T]), 0 outside the mask.
  """
  per_row = jax.vmap(discounted_returns, in_axes=(0, 0, None))
  returns_BT = per_row(token_rewards_BT, mask_BT, gamma)
  return masked_whiten(returns_BT, mask_BT), returns_BT


def spread_over_tokens(advantages_E: Sequence[float] | np.ndarray, mask_ET) -> np.ndarray:
  """Every trained token of a trajectory carries its advantage, the others exactly 0; [E, T]."""
  return np.where(mask_ET, np.asarray(advantages_E)[:, None], 0)
