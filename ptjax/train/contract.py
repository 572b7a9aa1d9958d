"""The sampler/trainer contract: both must give a sampled token the same log-prob.

Most silent failures of RL stacks are a difference between the two: another temperature,
another template, another mask, stale weights. The run compares them on what it has just
sampled and stops where they differ (DESIGN.md, section 5).
"""

from collections.abc import Sequence

import numpy as np

from ptjax.core.types import Trajectory
from ptjax.data.tokenizer import Tokenizer

_CONTEXT = 12  # tokens shown on each side of the worst one


class ContractError(ValueError):
  """The sampler and the trainer disagree on a sampled token."""


def check_contract(
  trajectories: Sequence[Trajectory],
  trainer_logprobs: Sequence[np.ndarray],
  tolerance: float,
  tokenizer: Tokenizer,
) -> float:
  """Compares the log-probs of every action under the same weights.

  Args:
    trajectories: freshly sampled, none under older weights.
    trainer_logprobs: for each trajectory f32 over its actions.
    tolerance: largest difference allowed, in nats.
    tokenizer: to show the worst token.

  Returns:
    The largest difference.

  Raises:
    ContractError: a difference beyond the tolerance, or one that is not a number.
  """
  worst, where = 0.0, None
  for trajectory, logprobs in zip(trajectories, trainer_logprobs, strict=True):
    sampled = trajectory.behavior_logprobs[trajectory.action_mask]
    if np.shape(logprobs) != sampled.shape:
      raise ValueError(
        f"trainer log-probs have shape {np.shape(logprobs)}, the trajectory has {sampled.shape} "
        f"actions"
      )
    gaps = np.abs(sampled - logprobs)
    gaps = np.where(np.isnan(gaps), np.inf, gaps)
    if len(gaps) and gaps.max() > worst:
      worst, where = float(gaps.max()), (trajectory, logprobs, int(gaps.argmax()))
  if where is not None and worst > tolerance:
    raise ContractError(_explain(*where, worst, tolerance, tokenizer))
  return worst


def _explain(trajectory, logprobs, action: int, worst, tolerance, tokenizer: Tokenizer) -> str:
  at = int(np.flatnonzero(trajectory.action_mask)[action])
  text = tokenizer.decode
  tokens = trajectory.tokens
  before, after = tokens[max(0, at - _CONTEXT) : at], tokens[at + 1 : at + 1 + _CONTEXT]
  return (
    f"sampler and trainer disagree by {worst:.4g} nats (tolerance {tolerance}) on token "
    f"{int(tokens[at])} {text(tokens[at : at + 1])!r} at position {at} of domain "
    f"{trajectory.domain}: sampler {trajectory.behavior_logprobs[at]:.5f}, trainer "
    f"{float(logprobs[action]):.5f}; context {text(before)!r} _ {text(after)!r}; check that "
    f"both use the same weights, temperature, filters and dtype, or raise "
    f"rl.contract_tolerance"
  )
