"""Rewards that depend on length, and the check that a batch of rewards is sane."""

from collections.abc import Sequence

from ptjax.rewards.tree import check_score


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
