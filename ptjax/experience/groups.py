"""Which groups of a rollout teach something: dynamic sampling, with reasons.

The verdict is on raw accuracy, the domain's yes/no verdict before any shaping, and on whole groups:
to drop single episodes would shift the baseline of those that stay.
Source: Yu et al. 2025 (DAPO, arXiv:2503.14476), section 3.2.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence

from ptjax.experience.collect import Played


class Reason(enum.StrEnum):
  """Why a group was dropped."""

  SHORT = "short"  # fewer than two episodes with a score
  UNSOLVED = "unsolved"
  SOLVED = "solved"


@dataclasses.dataclass(frozen=True)
class DynamicSampling:
  """Groups outside of the band are dropped and new tasks drawn in their place.

  Attributes:
    low, high: groups are kept whose share of passed episodes lies strictly between them.
    max_rounds: rollouts of a step at most; then it trains on what it has.
  """

  low: float = 0.0
  high: float = 1.0
  max_rounds: int = 4

  def __post_init__(self):
    if not 0 <= self.low < self.high <= 1:
      raise ValueError(
        f"dynamic_sampling.low {self.low} and high {self.high} must satisfy 0 <= low < high <= 1"
      )
    if self.max_rounds < 1:
      raise ValueError(f"dynamic_sampling.max_rounds {self.max_rounds} must be >= 1")


def drop_reason(members: Sequence[Played], config: DynamicSampling) -> Reason | None:
  """Why a group is dropped; None where it is kept. Episodes without a score do not count."""
  scored = [p for p in members if p.trainable]
  if len(scored) < 2:
    return Reason.SHORT
  accuracy = sum(p.grade.passed for p in scored) / len(scored)
  if accuracy <= config.low:
    return Reason.UNSOLVED
  return Reason.SOLVED if accuracy >= config.high else None


def by_group(played: Sequence[Played]) -> Mapping[int, list[Played]]:
  """The episodes of each group, groups in the order of their first episode."""
  groups: dict[int, list[Played]] = {}
  for p in played:
    groups.setdefault(p.spec.group, []).append(p)
  return groups


@dataclasses.dataclass(frozen=True)
class Sampled:
  """What a step sampled.

  Attributes:
    played: every episode, dropped groups included: what the policy does.
    kept: the episodes of the groups that train.
    dropped: groups dropped, by reason.
    rounds: rollouts that it took.
    missing: groups wanted and not found.
  """

  played: list[Played]
  kept: list[Played]
  dropped: Mapping[Reason, int]
  rounds: int
  missing: int


def sample_groups(
  play: Callable[[int, int, int], list[Played]], wanted: int, config: DynamicSampling
) -> Sampled:
  """Plays until `wanted` groups are kept, or the rounds are over.

  Args:
    play: `(round, count, first_group) -> episodes` of `count` groups numbered from first_group.
    wanted: groups to keep.
    config: the band and the rounds.
  """
  played: list[Played] = []
  kept: list[Played] = []
  dropped = dict.fromkeys(Reason, 0)
  missing, first_group, rounds = wanted, 0, 0
  while missing and rounds < config.max_rounds:
    episodes = play(rounds, missing, first_group)
    first_group, rounds = first_group + missing, rounds + 1
    played += episodes
    for members in by_group(episodes).values():
      reason = drop_reason(members, config)
      if reason is not None:
        dropped[reason] += 1
        continue
      kept += members
      missing -= 1
  return Sampled(played, kept, dropped, rounds, missing)
