"""From graded episodes to advantages and returns: rewards, their shaping, the estimators."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ptjax.algos.advantages import ADVANTAGES, reinforce_pp
from ptjax.algos.gae import gae, gae_turns, length_adaptive_lambda
from ptjax.algos.gdpo import gdpo
from ptjax.algos.kl import kl_tokens
from ptjax.core.types import Trajectory
from ptjax.rewards.parts import root_parts
from ptjax.rewards.shaping import shaped
from ptjax.rewards.tree import RewardTree
from ptjax.train.batch import PerAction
from ptjax.train.rl_config import GDPO, CriticConfig, RLConfig

# E: trajectories of the batch. W: longest trajectory, in actions.


def outcome_rewards(
  trajectories: Sequence[Trajectory], config: RLConfig, max_new_tokens: int
) -> list[float]:
  """The reward of each episode, shaped by its length; 0 where it was cut before it had one."""
  rewards = [t.rewards.get("", 0.0) for t in trajectories]
  if not config.shaping.active:
    return rewards
  return shaped(
    rewards,
    [t.num_actions for t in trajectories],
    [t.passed for t in trajectories],
    [t.group for t in trajectories],
    config.shaping,
    max_new_tokens,
  )


def kl_penalties(
  trajectories: Sequence[Trajectory], reference: PerAction, config: RLConfig
) -> PerAction:
  """coef * k at each action, of the policy that drew it: what a KL in the reward takes away."""
  objective = config.objective
  lengths = [t.num_actions for t in trajectories]
  mask_EW = _padded(lengths)
  logp_EW, ref_EW = np.zeros((2, *mask_EW.shape), np.float32)
  logp_EW[mask_EW] = np.concatenate([t.behavior_logprobs[t.action_mask] for t in trajectories])
  ref_EW[mask_EW] = np.concatenate(reference)
  kl_EW = kl_tokens(logp_EW, ref_EW, objective.estimator)
  return _cut(lengths, objective.kl_coef * kl_EW)[0]


def group_advantages(
  trajectories: Sequence[Trajectory],
  estimator: str,
  rewards: Sequence[float] | None = None,
  trees: Mapping[str, RewardTree] | None = None,
) -> PerAction:
  """The advantage of each trajectory, on all its actions.

  Where failed episodes left one member of a group, it has nothing to be compared with
  and gets 0.

  Args:
    trajectories: with their groups.
    estimator: a key of `ADVANTAGES`, or gdpo.
    rewards: one a trajectory; None takes the root of the reward tree.
    trees: reward tree of each domain; gdpo reads the children of its root.
  """
  groups = [t.group for t in trajectories]
  rewards = [t.reward for t in trajectories] if rewards is None else rewards
  lengths = np.asarray([t.num_actions for t in trajectories])
  single = [i for i, g in enumerate(groups) if groups.count(g) == 1]
  # An estimator refuses groups of one, since in a configuration they are a mistake; a
  # second member that does not count says that this one lost its peers.
  padded_groups = [*groups, *(groups[i] for i in single)]
  if estimator == GDPO:
    if trees is None:
      raise ValueError("gdpo needs the reward tree of each domain")
    parts_PE, weights_PE = _parts(trajectories, trees)
    missing = [None] * len(single)
    weights_PE = np.pad(weights_PE, ((0, 0), (0, len(single))))
    values_E = gdpo([[*part, *missing] for part in parts_PE], weights_PE, padded_groups)
  else:
    padded = (
      [*rewards, *(None for _ in single)],
      padded_groups,
      None,
      np.concatenate([lengths, np.zeros(len(single), int)]),
    )
    values_E = ADVANTAGES[estimator](*padded)
  values_E = values_E[: len(trajectories)]
  return [np.full(n, a, np.float32) for a, n in zip(values_E, lengths, strict=True)]


def unit_by_domain(advantages: PerAction, domains: Sequence[str]) -> PerAction:
  """Divides the advantages of each domain by their root mean square over its actions.

  Signs and zeros stay. A domain whose root mean square is noise (1e-6 or less) stays as it is.
  """
  squares: dict[str, float] = {}
  counts: dict[str, int] = {}
  for values, domain in zip(advantages, domains, strict=True):
    squares[domain] = squares.get(domain, 0.0) + float(np.sum(values.astype(np.float64) ** 2))
    counts[domain] = counts.get(domain, 0) + len(values)
  rms = {domain: (squares[domain] / max(counts[domain], 1)) ** 0.5 for domain in squares}
  scale = {domain: 1 / r if r > 1e-6 else 1.0 for domain, r in rms.items()}
  return [
    (values * scale[domain]).astype(np.float32)
    for values, domain in zip(advantages, domains, strict=True)
  ]


def _parts(trajectories: Sequence[Trajectory], trees: Mapping[str, RewardTree]):
  """(values [P, E], weights [P, E]) of the parts; a domain with fewer parts has None and 0."""
  pairs = [root_parts(trees[t.domain], t.rewards) for t in trajectories]
  num_parts = max(map(len, pairs))
  pairs = [[*p, *[(0.0, None)] * (num_parts - len(p))] for p in pairs]
  values = [[p[k][1] for p in pairs] for k in range(num_parts)]
  return values, np.asarray([[p[k][0] for p in pairs] for k in range(num_parts)])


def _token_rewards(rewards: Sequence[float], lengths, mask_EW, penalties: PerAction | None):
  """f32[E, W]: the reward at the last action of each trajectory, less the penalties."""
  out_EW = np.zeros(mask_EW.shape, np.float32)
  out_EW[np.arange(len(lengths)), np.asarray(lengths) - 1] = rewards
  if penalties is not None:
    out_EW[mask_EW] -= np.concatenate(penalties)
  return out_EW


def _padded(lengths: Sequence[int]) -> np.ndarray:
  """mask_EW over the actions; few widths, few compilations."""
  width = 1 << max(max(lengths) - 1, 0).bit_length()
  return np.arange(width) < np.asarray(lengths)[:, None]


def _cut(lengths, *arrays_EW) -> tuple[PerAction, ...]:
  fetched = jax.device_get(arrays_EW)
  return tuple([row[:n] for row, n in zip(x, lengths, strict=True)] for x in fetched)


def critic_advantages(
  trajectories: Sequence[Trajectory],
  values: PerAction,
  config: CriticConfig,
  rewards: Sequence[float] | None = None,
  penalties: PerAction | None = None,
  bootstraps: Sequence[float | None] | None = None,
) -> tuple[PerAction, PerAction]:
  """(advantages, returns) by GAE; the reward falls on the last action.

  A scored episode is over, also one that met its length limit: the limit belongs to the
  task, nothing comes after it.

  Args:
    trajectories, values: the episodes, and the critic's value before each of their actions.
    config: discount and lambdas.
    rewards: one a trajectory; None takes the root of the reward tree.
    penalties: what to take from the reward of each action; None for nothing.
    bootstraps: for each trajectory the value of the state after its last token where it was cut off
      without a verdict, else None; None: all are over.
  """
  lengths = [t.num_actions for t in trajectories]
  mask_EW = _padded(lengths)
  values_EW = np.zeros(mask_EW.shape, np.float32)
  values_EW[mask_EW] = np.concatenate(values)
  rewards = [t.reward for t in trajectories] if rewards is None else rewards
  turns_EW = None
  if config.turn_level:
    turns_EW = np.zeros(mask_EW.shape, np.int32)
    turns_EW[mask_EW] = np.concatenate([action_turns(t) for t in trajectories])
  after = [None] * len(lengths) if bootstraps is None else bootstraps
  advantages_EW, returns_EW = _gae(
    _token_rewards(rewards, lengths, mask_EW, penalties),
    values_EW,
    mask_EW,
    turns_EW,
    np.asarray([b is None for b in after]),
    np.asarray([0.0 if b is None else b for b in after], np.float32),
    np.float32(config.gamma),
    np.float32(config.lam),
    _policy_lambdas(config, mask_EW),
  )
  advantages, returns = _cut(lengths, advantages_EW, returns_EW)
  return advantages, returns


def with_probe(trajectory: Trajectory) -> Trajectory:
  """The trajectory with one action more, which is never trained on.

  The state before that action is the state after the last token: scored by the critic with the
  others, it gives the value to bootstrap from.
  """
  t = trajectory
  return dataclasses.replace(
    t,
    tokens=np.append(t.tokens, t.tokens[-1]),
    action_mask=np.append(t.action_mask, True),
    behavior_logprobs=np.append(t.behavior_logprobs, np.float32(0)),
    policy_versions=np.append(t.policy_versions, t.policy_versions[-1]),
    routes=None,  # of the policy; a critic routes by itself
  )


def action_turns(trajectory: Trajectory) -> np.ndarray:
  """i32 over the actions: the turn of each, counted over the turns that hold actions."""
  positions = np.flatnonzero(trajectory.action_mask)
  turns = np.searchsorted(trajectory.turn_starts, positions, side="right")
  return np.unique(turns, return_inverse=True)[1].astype(np.int32)


def _policy_lambdas(config: CriticConfig, mask_EW: np.ndarray) -> np.ndarray | None:
  """f32[E], the lambda of each trajectory's advantages; None where it is that of the targets."""
  if config.lam_alpha is not None:
    return np.asarray(jax.vmap(length_adaptive_lambda, (0, None))(mask_EW, config.lam_alpha))
  if config.lam_policy is not None:
    return np.full(len(mask_EW), config.lam_policy, np.float32)
  return None


@jax.jit
def _gae(rewards_EW, values_EW, mask_EW, turns_EW, over_E, after_E, gamma, lam, lam_policy_E):
  def one(rewards_W, values_W, mask_W, turns_W, over, after, lam_policy):
    def estimate(lam):
      if turns_W is None:
        return gae(rewards_W, values_W, mask_W, over, after, gamma, lam)
      return gae_turns(rewards_W, values_W, mask_W, turns_W, over, after, gamma, lam)

    advantages_W, returns_W = estimate(lam)
    return advantages_W if lam_policy is None else estimate(lam_policy)[0], returns_W

  trajectories = rewards_EW, values_EW, mask_EW, turns_EW, over_E, after_E, lam_policy_E
  return jax.vmap(one)(*trajectories)


def token_return_advantages(
  trajectories: Sequence[Trajectory],
  rewards: Sequence[float],
  penalties: PerAction | None,
  gamma: float,
) -> PerAction:
  """REINFORCE++: discounted returns of each action, whitened over the batch."""
  lengths = [t.num_actions for t in trajectories]
  mask_EW = _padded(lengths)
  token_rewards_EW = _token_rewards(rewards, lengths, mask_EW, penalties)
  advantages_EW, _ = _reinforce_pp(token_rewards_EW, mask_EW, np.float32(gamma))
  return _cut(lengths, advantages_EW)[0]


_reinforce_pp = jax.jit(reinforce_pp)


def whiten(values: PerAction) -> PerAction:
  """Advantages at mean 0 and standard deviation 1 over all actions of the batch."""
  joined = np.concatenate(values).astype(np.float64)
  mean, std = joined.mean(), joined.std(ddof=1) if len(joined) > 1 else 0.0
  if np.all(np.abs(joined - mean) <= 1e-6 * max(1.0, np.abs(joined).max())):
    return [np.zeros_like(v) for v in values]
  return [((v - mean) / (std + 1e-6)).astype(np.float32) for v in values]
