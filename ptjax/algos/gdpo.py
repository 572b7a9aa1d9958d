"""GDPO: every reward is normalised within its group by itself, then they are summed.

GRPO normalises the sum. Two groups with rewards (correct, format) of {(0, 1), (1, 0)} and
{(0, 0), (1, 0)} then differ in nothing but scale, and a reward of small spread vanishes beside one
of large spread. Normalised apart, each keeps the resolution that its weight says.

Source: Liu et al. 2026 (GDPO, arXiv:2601.05242). Letters: E trajectories, P parts of the reward.
"""

from collections.abc import Sequence

import numpy as np

from ptjax.algos.advantages import grpo
from ptjax.core.masked import STD_EPS

Parts = Sequence[Sequence[float | None]]


def gdpo(parts_PE: Parts, weights_PE, group_ids_E, valid_E=None) -> np.ndarray:
  """A_i = whiten(sum_p w_{p,i} (r_{p,i} - mean_p) / (std_p + eps)), in float64.

  mean_p and std_p (ddof 1) are those of part p over the members of the group that have it; whiten
  is over the valid trajectories of the batch that have a part, each counting once:
  (a - mean) / (std + eps).

  Args:
    parts_PE: each part of every trajectory's reward; None where it has none, which takes the
      trajectory out of that part only.
    weights_PE: weight of each part, [P, E], since groups of different domains have different parts.
    group_ids_E, valid_E: as the estimators of `advantages`.

  Returns:
    float64[E]; exactly 0 for trajectories that do not count, and in groups all of whose parts are
    constant.

  Raises:
    ValueError: no part, unequal lengths, and whatever `advantages.grpo` refuses.
  """
  weights_PE = np.asarray(weights_PE, np.float64)
  if len(parts_PE) == 0 or weights_PE.shape != (len(parts_PE), len(group_ids_E)):
    raise ValueError(
      f"gdpo needs weights of shape [parts, trajectories] = {(len(parts_PE), len(group_ids_E))} "
      f"with at least one part, got {weights_PE.shape}"
    )
  parts = zip(parts_PE, weights_PE, strict=True)
  summed_E = np.sum([w_E * grpo(part_E, group_ids_E, valid_E) for part_E, w_E in parts], axis=0)
  group_ids_E = np.asarray(group_ids_E)
  moving = set(group_ids_E[summed_E != 0].tolist())
  counts_E = np.any([[r is not None for r in part_E] for part_E in parts_PE], axis=0)
  counts_E &= True if valid_E is None else np.asarray(valid_E, bool)
  live_E = counts_E & np.asarray([g in moving for g in group_ids_E.tolist()], bool)
  counting = summed_E[counts_E]
  if len(counting) < 2:
    return np.zeros_like(summed_E)
  mean, std = counting.mean(), counting.std(ddof=1)
  return np.where(live_E, (summed_E - mean) / (std + STD_EPS), 0)
