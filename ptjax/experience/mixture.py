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
  """

  name: str
  weight: float = 1.0
  judge: JudgeConfig | None = None
  module: str | None = None

  def __post_init__(self):
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
    self._base = {d.name: d.weight / total for d in domains}
    self._balance = balance
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
    if self._balance is None:
      return
    for name, (passed, scored) in counts.items():
      self._seen[name] = see(self._seen[name], passed, scored, self._balance)
    self._carry = self._lag(0)
    self._origin = dict(self.drawn)
    self._share = self._balanced()

  def _balanced(self) -> dict[str, float]:
    if self._balance is None:
      return dict(self._base)
    return balanced(self._base, self._seen, self._balance)

  def _lag(self, ahead: int) -> dict[str, float]:
    """Draws that each is behind its share, `ahead` draws from now."""
    counted = {name: self.drawn[name] - self._origin[name] for name in self.drawn}
    n = sum(counted.values()) + ahead
    return {
      name: self._carry[name] + share * n - counted[name] for name, share in self._share.items()
    }

  def _next(self) -> str:
    lag = self._lag(1)
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
      "seen": {name: dataclasses.astuple(seen) for name, seen in self._seen.items()},
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on from a saved state.

    Where domains or weights have changed, each domain goes on with its next task (a new one
    with its first) and the quotas begin anew: nothing is made up for. What was seen of a domain
    that stays is kept. A state from before the shares could move has nothing to carry.
    """
    self.drawn = {name: state["drawn"].get(name, 0) for name in self.drawn}
    same = state["share"] == self._base
    self._origin = dict(state["origin"]) if same else dict(self.drawn)
    self._carry = dict.fromkeys(self.drawn, 0.0)
    if same:
      self._carry |= state.get("carry", {})
    for name, (fast, slow, episodes) in state.get("seen", {}).items():
      if name in self._seen:
        self._seen[name] = Seen(tuple(fast), tuple(slow), episodes)
    self._share = self._balanced()


def task_seed(run_seed: int, domain: str, index: int) -> int:
  """Seed of the index-th task of a domain, 32 bits; other domains do not change it."""
  words = np.random.SeedSequence([run_seed, zlib.crc32(domain.encode()), index])
  return int(words.generate_state(1)[0])
