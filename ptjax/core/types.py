"""The array legend, and the records that flow through one RL step.

Array names end in the letters of their axes, `x_BTD` being [batch, time, model]:

  A  action slots of a packed row       K  key/value heads
  B  batch rows (packs or sequences)    L  layers
  D  model width                        N  query heads
  F  feed-forward width                 S  cache length; also key positions
  H  head width                         T  token positions
  R  rollout slots                      V  vocabulary

A file may add letters at its top; it never redefines one.
"""

import dataclasses
import enum
from collections.abc import Mapping

import numpy as np


class Outcome(enum.StrEnum):
  """How an episode ended. Only `SCORED` (and `TRUNCATED`, where allowed) may train."""

  SCORED = "scored"
  TRUNCATED = "truncated"
  INFRA_FAILED = "infra_failed"
  UNSCORABLE = "unscorable"
  CANCELLED = "cancelled"


class FinishReason(enum.StrEnum):
  """Why the engine stopped generating."""

  STOP = "stop"
  LENGTH = "length"
  CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """One episode, append-only; text is never tokenised again after sampling.

  Attributes:
    tokens: i32[T], prompt, actions and observations in order.
    action_mask: bool[T], true where the policy sampled the token.
    behavior_logprobs: f32[T], natural log-probability under the sampling
      distribution (temperature and filters included); 0 where not an action.
    policy_versions: i32[T], version of the weights that sampled the token; -1
      where not an action.
    turn_starts: index of the first token of each turn.
    domain: name of the domain that set the task.
    group: episodes with the same group share their prompt.
    seed: seed of the request.
    rewards: value of each reward-tree node by path, `""` being the root.
    outcome: see `Outcome`; a reward exists only for scored outcomes.
    finish_reason: why the last generation ended.
    passed: the domain's yes/no verdict, for pass rates.
    routes: int[T, L, X], the X experts of each token in the L layers of a mixture that have some,
      as the sampler chose them, -1 for tokens that it never read; None where not recorded.
  """

  tokens: np.ndarray
  action_mask: np.ndarray
  behavior_logprobs: np.ndarray
  policy_versions: np.ndarray
  turn_starts: tuple[int, ...]
  domain: str
  group: int
  seed: int
  rewards: Mapping[str, float]
  outcome: Outcome
  finish_reason: FinishReason
  passed: bool = False
  routes: np.ndarray | None = None

  def __post_init__(self):
    n = len(self.tokens)
    per_token = ("action_mask", "behavior_logprobs", "policy_versions")
    for name in (*per_token, "routes") if self.routes is not None else per_token:
      if len(getattr(self, name)) != n:
        raise ValueError(f"Trajectory.{name} has {len(getattr(self, name))} entries, tokens {n}")

  @property
  def num_actions(self) -> int:
    return int(self.action_mask.sum())

  @property
  def reward(self) -> float:
    """Root of the reward tree; raises KeyError where the episode has no score."""
    return self.rewards[""]
