"""From scored episodes to micro-batches: minibatches, weights, packing."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ptjax.algos.aggregate import token_weights
from ptjax.core.types import Trajectory
from ptjax.experience.packing import PackConfig, Packed, Rows, pack
from ptjax.train.objectives import PolicyBatch, ValueBatch
from ptjax.train.rl_config import RLConfig

PerAction = list[np.ndarray]  # for each trajectory an f32 array over its actions


_PER_TRAJECTORY = (
  "trajectories",
  "advantages",
  "old_logprobs",
  "reference_logprobs",
  "old_values",
  "returns",
)


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
    domain_shares: weight of every domain in the mixture, for the domain_balanced aggregation.
    entropy_coef: weight of the entropy bonus where it changes from step to step; else None.
  """

  trajectories: Sequence[Trajectory]
  advantages: PerAction
  old_logprobs: PerAction | None = None
  reference_logprobs: PerAction | None = None
  old_values: PerAction | None = None
  returns: PerAction | None = None
  domain_shares: Mapping[str, float] | None = None
  entropy_coef: float | None = None

  def take(self, keep: Sequence[int]) -> "Batch":
    """The batch of some of the trajectories."""

    def some(values: Any) -> Any:
      return None if values is None else [values[i] for i in keep]

    return dataclasses.replace(
      self, **{name: some(getattr(self, name)) for name in _PER_TRAJECTORY}
    )


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
  weights_E = token_weights(
    config.aggregation,
    lengths,
    l_max=max_new_tokens,
    constant=len(lengths),
    domains_E=[t.domain for t in batch.trajectories],
    shares=batch.domain_shares,
  )
  return list(weights_E)


def computed(batch: Batch, config: RLConfig) -> list[int]:
  """Indices of the trajectories that can move the policy."""
  bonus = config.objective.entropy_coef if batch.entropy_coef is None else batch.entropy_coef
  every = range(len(batch.trajectories))
  if config.objective.kl_in_loss or bonus:
    return list(every)
  return [i for i in every if np.any(batch.advantages[i] != 0)]


def policy_batches(
  batch: Batch, config: RLConfig, packing: PackConfig, max_new_tokens: int
) -> list[PolicyBatch]:
  """Micro-batches of one policy update.

  Trajectories that cannot move the policy (advantage 0 on every action, and neither KL
  nor entropy in the loss) are not computed: their share of the gradient is exactly 0.
  The normaliser still counts them.
  """
  weights = weights_of(batch, config, max_new_tokens)
  keep = computed(batch, config)
  if not keep:
    return []
  part = batch.take(keep)
  packed = pack(part.trajectories, packing, routes=recorded_routes(part.trajectories))
  spread = lambda values: None if values is None else packed.spread(values)  # noqa: E731
  whole = PolicyBatch(
    rows=packed.rows,
    weights_BA=packed.spread([weights[i] for i in keep]),
    advantages_BA=packed.spread(part.advantages),
    behavior_BA=packed.spread([t.behavior_logprobs[t.action_mask] for t in part.trajectories]),
    old_BA=spread(part.old_logprobs),
    reference_BA=spread(part.reference_logprobs),
    entropy_coef_B=_every_row(batch.entropy_coef, packed.rows.mask_BA.shape[0]),
  )
  return list(micro_batches(whole, packing.rows))


def recorded_routes(trajectories: Sequence[Trajectory]) -> list[np.ndarray] | None:
  """The recorded experts of each trajectory; None where the sampler recorded none."""
  routes = [t.routes for t in trajectories if t.routes is not None]
  if routes and len(routes) < len(trajectories):
    raise ValueError(f"{len(routes)} of {len(trajectories)} trajectories have recorded routes")
  return routes or None


def _every_row(value: float | None, num_rows: int) -> np.ndarray | None:
  return None if value is None else np.full(num_rows, value, np.float32)


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
  trajectories: Sequence[Trajectory], packing: PackConfig, *, replay: bool = False
) -> tuple[Packed, list[Rows]]:
  """For scoring: the packing, and its rows cut into micro-batches.

  With `replay`, recorded experts are taken again: by the policy that they were recorded of, not by
  other networks.
  """
  packed = pack(trajectories, packing, routes=recorded_routes(trajectories) if replay else None)
  return packed, list(micro_batches(packed.rows, packing.rows))
