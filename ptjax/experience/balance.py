"""Weights of domains from what the run has seen of them: where there is most to learn.

Pure functions of counts; the mixture keeps them, so that a resumed run goes on with them.
"""

import dataclasses
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class BalanceConfig:
  """How much draws a domain to itself.

      score = 1 + progress |fast - slow| + difficulty 4 p (1 - p) + uncertainty / sqrt(1 + n)

  p is the pass rate of training episodes, fast and slow its averages over about 1 / (1 - decay) of
  the domain's steps, n the episodes seen.

  Attributes:
    progress: of a rate that moves, up or down (Matiisen et al. 2017, arXiv:1707.00183, §3).
    difficulty: of a rate near one half, where groups differ most.
    uncertainty: of a domain of which little has been seen.
    keep: part of its configured share that a domain keeps whatever its score.
    fast, slow: decays of the two averages.
  """

  progress: float = 4.0
  difficulty: float = 1.0
  uncertainty: float = 1.0
  keep: float = 0.25
  fast: float = 0.7
  slow: float = 0.95

  def __post_init__(self):
    for name in ("progress", "difficulty", "uncertainty"):
      if not 0 <= getattr(self, name) < math.inf:
        raise ValueError(f"balance.{name} {getattr(self, name)} must be >= 0 and finite")
    if not 0 < self.keep <= 1:
      raise ValueError(f"balance.keep {self.keep} must be in (0, 1]; no domain may be starved")
    if not 0 <= self.fast < self.slow < 1:
      raise ValueError(
        f"balance.fast {self.fast} and slow {self.slow} must satisfy 0 <= fast < slow < 1"
      )


@dataclasses.dataclass(frozen=True)
class Seen:
  """Training episodes of a domain: (passed, scored), decayed by step, and how many in all."""

  fast: tuple[float, float] = (0.0, 0.0)
  slow: tuple[float, float] = (0.0, 0.0)
  episodes: int = 0


def see(seen: Seen, passed: int, scored: int, config: BalanceConfig) -> Seen:
  """Takes a step's episodes in; a step without any changes nothing."""
  if not 0 <= passed <= scored:
    raise ValueError(f"{passed} passed of {scored} episodes: needs 0 <= passed <= scored")
  if scored == 0:
    return seen
  fast = (config.fast * seen.fast[0] + passed, config.fast * seen.fast[1] + scored)
  slow = (config.slow * seen.slow[0] + passed, config.slow * seen.slow[1] + scored)
  return Seen(fast, slow, seen.episodes + scored)


def score(seen: Seen, config: BalanceConfig) -> float:
  """The equation of `BalanceConfig`; an unseen domain counts as half solved."""
  fast, slow = ((p + 0.5) / (n + 1) for p, n in (seen.fast, seen.slow))
  progress = abs(fast - slow) if seen.episodes else 0.0
  return (
    1
    + config.progress * progress
    + config.difficulty * 4 * slow * (1 - slow)
    + config.uncertainty / math.sqrt(1 + seen.episodes)
  )


def balanced(
  base: Mapping[str, float], seen: Mapping[str, Seen], config: BalanceConfig
) -> dict[str, float]:
  """Shares that sum to 1, and never less than `keep` of those configured.

      share = keep base + (1 - keep) base score / sum(base score)

  Args:
    base: configured shares by domain; they sum to 1.
    seen: of every domain in `base`.
    config: the weights of the score.
  """
  wanted = {name: share * score(seen[name], config) for name, share in base.items()}
  total = math.fsum(wanted.values())
  keep = config.keep
  return {name: keep * base[name] + (1 - keep) * wanted[name] / total for name in base}
