"""Rewards that depend on length, and the check that a batch of rewards is sane."""

import dataclasses
from collections.abc import Hashable, Sequence

from ptjax.rewards.tree import check_score


@dataclasses.dataclass(frozen=True)
class ShapingConfig:
  """What is added to the root of the reward tree for the length of an answer, for training only.

  Attributes:
    overlong_buffer: tokens before the limit over which the soft punishment grows (DAPO); None for
      no punishment.
    overlong_factor: size of the full punishment.
    overlong_length: tokens at which it is full; None takes `policy.max_new_tokens`.
    length_bonus: weight of the bonus for short right answers within a group (Kimi k1.5).
  """

  overlong_buffer: int | None = None
  overlong_factor: float = 1.0
  overlong_length: int | None = None
  length_bonus: float = 0.0

  def __post_init__(self):
    if self.overlong_buffer is not None and self.overlong_buffer < 1:
      raise ValueError(
        f"shaping.overlong_buffer {self.overlong_buffer} must be >= 1; None switches the "
        f"punishment off"
      )
    if self.overlong_buffer is None and self.overlong_length is not None:
      raise ValueError(
        f"shaping.overlong_length {self.overlong_length} without overlong_buffer does nothing; set "
        f"both"
      )
    for name in ("overlong_factor", "length_bonus"):
      if not 0 <= getattr(self, name) < float("inf"):
        raise ValueError(f"shaping.{name} {getattr(self, name)} must be >= 0 and finite")

  @property
  def active(self) -> bool:
    return self.overlong_buffer is not None or self.length_bonus > 0

  def check_length(self, max_new_tokens: int) -> None:
    """Raises ValueError where the buffer does not fit before the limit."""
    limit = self.overlong_length or max_new_tokens
    if self.overlong_buffer is not None and self.overlong_buffer > limit:
      raise ValueError(
        f"shaping.overlong_buffer {self.overlong_buffer} exceeds the limit of {limit} tokens; it "
        f"must be in 1..{limit}"
      )


def shaped(
  rewards: Sequence[float],
  lengths: Sequence[int],
  passed: Sequence[bool],
  groups: Sequence[Hashable],
  config: ShapingConfig,
  max_new_tokens: int,
) -> list[float]:
  """reward + overlong punishment + length_bonus * bonus within the group, for each episode.

  Args:
    rewards: root of the reward tree.
    lengths: sampled tokens.
    passed: the domain's verdict.
    groups: group of each episode.
    config: what to add.
    max_new_tokens: the limit, where the configuration names none.
  """
  out = list(rewards)
  if config.overlong_buffer is not None:
    limit = config.overlong_length or max_new_tokens
    penalties = overlong_penalties(
      lengths, l_max=limit, buffer=config.overlong_buffer, factor=config.overlong_factor
    )
    out = [r + p for r, p in zip(out, penalties, strict=True)]
  if config.length_bonus:
    for group in dict.fromkeys(groups):
      members = [i for i, g in enumerate(groups) if g == group]
      bonuses = length_bonuses([lengths[i] for i in members], [passed[i] for i in members])
      for i, bonus in zip(members, bonuses, strict=True):
        out[i] += config.length_bonus * bonus
  return out


def overlong_penalties(
  lengths: Sequence[int], *, l_max: int, buffer: int, factor: float = 1.0
) -> list[float]:
  """Soft overlong punishment (DAPO, arXiv:2503.14476, section 3.4).

  For a response of n tokens, factor times: 0 where n <= l_max - buffer;
  (l_max - buffer - n) / buffer up to l_max; -1 beyond.

  Args:
    lengths: response tokens of each sample, the prompt not counted.
    l_max: longest response that is not fully punished, tokens.
    buffer: tokens before `l_max` over which the punishment grows.
    factor: size of the full punishment.

  Raises:
    ValueError: where `buffer` is not in 1..l_max.
  """
  if not 0 < buffer <= l_max:
    raise ValueError(f"buffer must be in 1..l_max, got buffer {buffer}, l_max {l_max}")
  start = l_max - buffer
  return [factor * max(-1.0, min(0.0, (start - n) / buffer)) for n in lengths]


def length_bonuses(lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
  """Length reward within one group (Kimi k1.5, arXiv:2501.12599, section 2.3.3).

  lam_i = 0.5 - (length_i - min) / (max - min), all 0 where max = min; a correct response gets
  lam_i, a wrong one min(0, lam_i), so being short never pays for being wrong.
  """
  if len(lengths) != len(correct):
    raise ValueError(f"{len(lengths)} lengths but {len(correct)} verdicts; give one for each")
  shortest, longest = min(lengths, default=0), max(lengths, default=0)
  if shortest == longest:
    return [0.0] * len(lengths)
  bonuses = [0.5 - (n - shortest) / (longest - shortest) for n in lengths]
  return [
    bonus if right else min(0.0, bonus) for bonus, right in zip(bonuses, correct, strict=True)
  ]


def validate(rewards: Sequence[float | None], low: float, high: float) -> list[float | None]:
  """Returns the rewards as they are; raises InvalidScore for one not finite or out of range.

  None (no reward) passes; the ends of the range are allowed, without tolerance.
  """
  return [
    None if reward is None else check_score(reward, f"reward {i}", low, high)
    for i, reward in enumerate(rewards)
  ]
