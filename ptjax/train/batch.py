"""From graded episodes to micro-batches: advantages, returns, weights, packing."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ptjax.algos.advantages import ADVANTAGES
from ptjax.algos.aggregate import token_weights
from ptjax.algos.gae import gae, place_outcome_reward
from ptjax.core.types import Trajectory
from ptjax.experience.packing import PackConfig, Packed, Rows, pack
from ptjax.train.experiment import GAE, CriticConfig, RLConfig
from ptjax.train.objectives import PolicyBatch, ValueBatch

# E: trajectories of the batch. W: longest trajectory, in actions.

PerAction = list[np.ndarray]  # for each trajectory an f32 array over its actions


@dataclasses.dataclass(frozen=True)
class Batch:
  """The trajectories of a step and what is known of each of their actions.

  Attributes:
    trajectories: those with a reward.
    advantages: of each action.
    old_logprobs: under the policy before the step; None where one update needs none.
    reference_logprobs: under the reference; None without one.
    old_values: of the critic before the step; None without one.
    returns: what the critic should predict; None without one.
  """

  trajectories: Sequence[Trajectory]
  advantages: PerAction
  old_logprobs: PerAction | None = None
  reference_logprobs: PerAction | None = None
  old_values: PerAction | None = None
  returns: PerAction | None = None

  def take(self, keep: Sequence[int]) -> "Batch":
    """The batch of some of the trajectories."""

    def some(values: Any) -> Any:
      return None if values is None else [values[i] for i in keep]

    return Batch(**{f.name: some(getattr(self, f.name)) for f in dataclasses.fields(self)})


def group_advantages(trajectories: Sequence[Trajectory], estimator: str) -> PerAction:
  """The advantage of each trajectory, on all its actions.

  Where failed episodes left one member of a group, it has nothing to be compared with
  and gets 0.
  """
  groups = [t.group for t in trajectories]
  rewards = [t.reward for t in trajectories]
  lengths = np.asarray([t.num_actions for t in trajectories])
  single = [i for i, g in enumerate(groups) if groups.count(g) == 1]
  # An estimator refuses groups of one, since in a configuration they are a mistake; a
  # second member that does not count says that this one lost its peers.
  padded = (
    [*rewards, *(None for _ in single)],
    [*groups, *(groups[i] for i in single)],
    None,
    np.concatenate([lengths, np.zeros(len(single), int)]),
  )
  values_E = ADVANTAGES[estimator](*padded)[: len(trajectories)]
  return [np.full(n, a, np.float32) for a, n in zip(values_E, lengths, strict=True)]


def critic_advantages(
  trajectories: Sequence[Trajectory], values: PerAction, config: CriticConfig
) -> tuple[PerAction, PerAction]:
  """(advantages, returns) by GAE; the reward falls on the last action.

  A scored episode is over, also one that met its length limit: the limit belongs to the
  task, nothing comes after it.
  """
  lengths = [t.num_actions for t in trajectories]
  width = 1 << max(max(lengths) - 1, 0).bit_length()  # few widths, few compilations
  mask_EW = np.arange(width) < np.asarray(lengths)[:, None]
  values_EW = np.zeros(mask_EW.shape, np.float32)
  values_EW[mask_EW] = np.concatenate(values)
  rewards_E = np.asarray([t.reward for t in trajectories], np.float32)
  advantages_EW, returns_EW = jax.device_get(
    _gae(rewards_E, values_EW, mask_EW, np.float32(config.gamma), np.float32(config.lam))
  )
  cut = lambda rows: [row[:n] for row, n in zip(rows, lengths, strict=True)]  # noqa: E731
  return cut(advantages_EW), cut(returns_EW)


@jax.jit
def _gae(rewards_E, values_EW, mask_EW, gamma, lam):
  def one(reward, values_W, mask_W):
    token_rewards_W = place_outcome_reward(reward, mask_W)
    return gae(token_rewards_W, values_W, mask_W, True, 0.0, gamma, lam)

  return jax.vmap(one)(rewards_E, values_EW, mask_EW)


def whiten(values: PerAction) -> PerAction:
  """Advantages at mean 0 and standard deviation 1 over all actions of the batch."""
  joined = np.concatenate(values).astype(np.float64)
  mean, std = joined.mean(), joined.std(ddof=1) if len(joined) > 1 else 0.0
  if np.all(np.abs(joined - mean) <= 1e-6 * max(1.0, np.abs(joined).max())):
    return [np.zeros_like(v) for v in values]
  return [((v - mean) / (std + 1e-6)).astype(np.float32) for v in values]


def minibatches(batch: Batch, config: RLConfig) -> Iterator[Batch]:
  """The parts of a pass, whole groups each, in the order of the groups."""
  groups = list(dict.fromkeys(t.group for t in batch.trajectories))
  for part in np.array_split(np.asarray(groups), config.minibatches):
    wanted = set(part.tolist())
    keep = [i for i, t in enumerate(batch.trajectories) if t.group in wanted]
    if keep:
      yield batch.take(keep)


def first_of_groups(trajectories: Sequence[Trajectory], count: int | None) -> list[int]:
  """Indices of the first `count` trajectories of each group; all without a count."""
  seen: dict[int, int] = {}
  indices = []
  for i, trajectory in enumerate(trajectories):
    seen[trajectory.group] = seen.get(trajectory.group, 0) + 1
    if count is None or seen[trajectory.group] <= count:
      indices.append(i)
  return indices


def weights_of(batch: Batch, config: RLConfig, max_new_tokens: int) -> list[float]:
  """Share of each trajectory's actions in the loss of this (global) batch."""
  lengths = [t.num_actions for t in batch.trajectories]
  return list(
    token_weights(config.aggregation, lengths, l_max=max_new_tokens, constant=len(lengths))
  )


def policy_batches(
  batch: Batch, config: RLConfig, packing: PackConfig, max_new_tokens: int
) -> list[PolicyBatch]:
  """Micro-batches of one policy update.

  Trajectories that cannot move the policy (advantage 0 on every action, and neither KL
  nor entropy in the loss) are not computed: their share of the gradient is exactly 0.
  The normaliser still counts them.
  """
  weights = weights_of(batch, config, max_new_tokens)
  keep = list(range(len(batch.trajectories)))
  if not config.objective.kl_coef and not config.objective.entropy_coef:
    keep = [i for i in keep if np.any(batch.advantages[i] != 0)]
  if not keep:
    return []
  part, packed = batch.take(keep), pack([batch.trajectories[i] for i in keep], packing)
  spread = lambda values: None if values is None else packed.spread(values)  # noqa: E731
  whole = PolicyBatch(
    rows=packed.rows,
    weights_BA=packed.spread([weights[i] for i in keep]),
    advantages_BA=packed.spread(part.advantages),
    behavior_BA=packed.spread([t.behavior_logprobs[t.action_mask] for t in part.trajectories]),
    old_BA=spread(part.old_logprobs),
    reference_BA=spread(part.reference_logprobs),
  )
  return list(micro_batches(whole, packing.rows))


def value_batches(
  batch: Batch, config: RLConfig, packing: PackConfig, max_new_tokens: int
) -> list[ValueBatch]:
  """Micro-batches of one critic update."""
  if batch.returns is None or batch.old_values is None:
    raise ValueError("a critic's batch needs returns and old values")
  packed = pack(batch.trajectories, packing)
  whole = ValueBatch(
    rows=packed.rows,
    weights_BA=packed.spread(weights_of(batch, config, max_new_tokens)),
    returns_BA=packed.spread(batch.returns),
    old_values_BA=packed.spread(batch.old_values),
  )
  return list(micro_batches(whole, packing.rows))


def micro_batches(whole, rows: int) -> Iterator:
  """Cuts every array into pieces of `rows` rows."""
  total = jax.tree.leaves(whole)[0].shape[0]
  for start in range(0, total, rows):
    yield jax.tree.map(lambda x, s=start: x[s : s + rows], whole)


def packed_micro_batches(
  trajectories: Sequence[Trajectory], packing: PackConfig
) -> tuple[Packed, list[Rows]]:
  """For scoring: the packing, and its rows cut into micro-batches."""
  packed = pack(trajectories, packing)
  return packed, list(micro_batches(packed.rows, packing.rows))


__all__ = ["GAE", "Batch", "critic_advantages", "group_advantages", "policy_batches"]
