"""Which domain sets the next task: exact quotas, deterministic, resumable."""

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptjax.experience.balance import BalanceConfig, Seen, balanced, see
from ptjax.rewards.judge import JudgeConfig


@dataclasses.dataclass(frozen=True)
class DomainConfig:
  """A domain of the run.

  Attributes:
    name: as `python -m ptjax.launch domains` lists it, or NAME@LEVEL.
    weight: share of the prompts, relative to the other domains.
    module: that of the user which offers it, see `domains.catalog`; None for ptjax's own.
    judge: a reward model that shares in the reward; None leaves the domain's own tree alone.
    floor: held-out pass rate that it must keep, where the run has a guard (`rl.guard`); None takes
      it from an evaluation at the start.
  """

  name: str
  weight: float = 1.0
  judge: JudgeConfig | None = None
  module: str | None = None
  floor: float | None = None

  def __post_init__(self):
    if self.floor is not None and not 0 < self.floor < 1:
      raise ValueError(f"floor {self.floor} of domain {self.name!r} must be in (0, 1)")
    if not 0 < self.weight < math.inf:
      raise ValueError(
        f"weight {self.weight} of domain {self.name!r} must be positive and finite; to leave the "
        f"domain out, remove it"
      )


@dataclasses.dataclass(frozen=True)
class Draw:
  """A task to set: the domain and the number of its task."""

  domain: str
  index: int


class Mixture:
  """Draws domains so that after n draws each has its share of n, to within one.

  A domain may be drawn once it is far enough behind its share, and among those the one that
  would first be a whole draw behind is taken (Tijdeman, 1980, The chairman assignment
  problem). Where the shares follow what is seen of the domains (`balance`), what each is behind
  or ahead is carried over, so that small shares get their turn too.
  """

  def __init__(self, domains: Sequence[DomainConfig], balance: BalanceConfig | None = None):
    names = [d.name for d in domains]
    if not names or len(set(names)) != len(names):
      raise ValueError(f"domains {names} must be distinct and at least one")
    total = sum(d.weight for d in domains)
    self._weights = {d.name: d.weight for d in domains}
    self._base = {d.name: d.weight / total for d in domains}
    # What the run itself has made of a weight: raised above 1, paused at 0.
    self._factor = dict.fromkeys(names, 1.0)
    self._balance, self._decays = balance, balance or BalanceConfig()
    self._seen = dict.fromkeys(names, Seen())
    self._share = self._balanced()
    self._slack = 1 / (2 * len(names) - 2) if len(names) > 1 else 0.0
    self.drawn = dict.fromkeys(names, 0)
    # Draws before these count for no quota: they fell under other domains or weights.
    self._origin = dict.fromkeys(names, 0)
    # How far behind its share each was when the shares last changed.
    self._carry = dict.fromkeys(names, 0.0)

  def draw(self, count: int) -> list[Draw]:
    """The next `count` tasks."""
    draws = []
    for _ in range(count):
      name = self._next()
      draws.append(Draw(name, self.drawn[name]))
      self.drawn[name] += 1
    return draws

  @property
  def shares(self) -> Mapping[str, float]:
    """The present share of each domain."""
    return self._share

  def observe(self, counts: Mapping[str, tuple[int, int]]) -> None:
    """Takes in (passed, scored) training episodes by domain; the shares follow, if balanced."""
    for name, (passed, scored) in counts.items():
      self._seen[name] = see(self._seen[name], passed, scored, self._decays)
    if self._balance is not None:
      self._move_shares()

  @property
  def seen(self) -> Mapping[str, Seen]:
    """Training episodes of each domain so far."""
    return self._seen

  @property
  def weights(self) -> Mapping[str, float]:
    """The configured weights, times what `scale` has made of them; balance apart."""
    return {name: weight * self._factor[name] for name, weight in self._weights.items()}

  @property
  def paused(self) -> frozenset[str]:
    """Domains that are not drawn."""
    return frozenset(name for name, factor in self._factor.items() if factor == 0)

  def scale(self, name: str, factor: float) -> None:
    """Multiplies the weight of a domain from the next draw on; 0 pauses it for good.

    Raises ValueError where no domain would be left to draw.
    """
    factors = self._factor | {name: self._factor[name] * factor}
    if not any(factors.values()):
      raise ValueError(f"domain {name!r} is the last one that is drawn; it cannot be paused")
    self._factor = factors
    self._move_shares()

  def _move_shares(self) -> None:
    self._carry = self._lag(0)
    self._origin = dict(self.drawn)
    self._share = self._balanced()
    self._carry = {name: lag if self._share[name] else 0.0 for name, lag in self._carry.items()}

  def _balanced(self) -> dict[str, float]:
    wanted = {name: share * self._factor[name] for name, share in self._base.items()}
    total = math.fsum(wanted.values())
    base = dict(self._base)
    if any(factor != 1 for factor in self._factor.values()):
      base = {name: share / total for name, share in wanted.items()}
    return base if self._balance is None else balanced(base, self._seen, self._balance)

  def _lag(self, ahead: int) -> dict[str, float]:
    """Draws that each is behind its share, `ahead` draws from now."""
    counted = {name: self.drawn[name] - self._origin[name] for name in self.drawn}
    n = sum(counted.values()) + ahead
    return {
      name: self._carry[name] + share * n - counted[name] for name, share in self._share.items()
    }

  def _next(self) -> str:
    lag = {name: value for name, value in self._lag(1).items() if self._share[name] > 0}
    # The tolerance keeps a domain that is due exactly now from missing its turn by rounding.
    due = [name for name in lag if lag[name] >= self._slack - 1e-9] or list(lag)
    return min(due, key=lambda d: (1 - self._slack - lag[d]) / self._share[d])

  def state(self) -> dict[str, Any]:
    """What `restore` takes; plain numbers."""
    return {
      "drawn": dict(self.drawn),
      "origin": dict(self._origin),
      "share": dict(self._base),
      "carry": dict(self._carry),
      "weights": dict(self._weights),
      "factor": dict(self._factor),
      "seen": {name: dataclasses.astuple(seen) for name, seen in self._seen.items()},
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on from a saved state.

    Where domains or weights have changed, each domain goes on with its next task (a new one
    with its first) and the quotas begin anew: nothing is made up for. What was seen of a domain
    that stays is kept; so is a pause or a raised weight, unless its configured weight has changed,
    which is how to take a pause back. A state from before the shares could move has nothing to
    carry.
    """
    self.drawn = {name: state["drawn"].get(name, 0) for name in self.drawn}
    same = state["share"] == self._base
    self._origin = dict(state["origin"]) if same else dict(self.drawn)
    self._carry = dict.fromkeys(self.drawn, 0.0)
    if same:
      self._carry |= state.get("carry", {})
    for name, factor in state.get("factor", {}).items():
      if self._weights.get(name) == state["weights"][name]:
        self._factor[name] = factor
    if not any(self._factor.values()):
      raise ValueError(
        f"every domain left, {sorted(self._factor)}, is paused in the checkpoint; add another, or "
        f"change the weight of one to take its pause back"
      )
    for name, (fast, slow, episodes) in state.get("seen", {}).items():
      if name in self._seen:
        self._seen[name] = Seen(tuple(fast), tuple(slow), episodes)
    self._share = self._balanced()


def task_seed(run_seed: int, domain: str, index: int) -> int:
  """Seed of the index-th task of a domain, 32 bits; other domains do not change it."""
  words = np.random.SeedSequence([run_seed, zlib.crc32(domain.encode()), index])
  return int(words.generate_state(1)[0])
