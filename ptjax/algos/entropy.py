"""Adaptive entropy control: the weight of the entropy bonus follows the entropy.

Source: He et al. 2025 (Skywork-OR1, arXiv:2505.22312), section 4.2 (adaptive entropy control).
"""

from typing import NamedTuple


class EntropyState(NamedTuple):
  """The coefficient, and whether the bonus acts in the next update."""

  coef: float
  active: bool = True

  @property
  def applied(self) -> float:
    """The weight of the bonus in the next update."""
    return self.coef if self.active else 0.0


def control_entropy(
  state: EntropyState, entropy: float, *, target: float, step: float, limit: float
) -> EntropyState:
  """c' = clip(c + step, 0, limit) where the entropy is under the target, else c - step.

  The bonus acts only while the entropy is at or under the target: a policy that explores enough is
  not pushed.

  Args:
    state: before.
    entropy: mean entropy of the policy's tokens in the last update, nats.
    target: entropy not to fall under, nats.
    step: change of the coefficient at a time.
    limit: largest coefficient.

  Raises:
    ValueError: an entropy that is not a number >= 0.
  """
  if not entropy >= 0:
    raise ValueError(f"entropy must be a number >= 0, got {entropy}; the policy has diverged")
  change = step if entropy < target else -step
  return EntropyState(min(max(state.coef + change, 0.0), limit), entropy <= target)
