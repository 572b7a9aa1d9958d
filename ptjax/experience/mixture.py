"""Which domain sets the next task: exact quotas, deterministic, resumable."""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class DomainConfig:
  """A domain of the run.

  Attributes:
    name: a key of `ptjax.domains.catalog.DOMAINS`.
    weight: share of the prompts, relative to the other domains.
  """

  name: str
  weight: float = 1.0

  def __post_init__(self):
    if not self.weight > 0:
      raise ValueError(f"weight {self.weight} of domain {self.name!r} must be > 0; or remove it")


@dataclasses.dataclass(frozen=True)
class Draw:
  """A task to set: the domain and the number of its task."""

  domain: str
  index: int


class Mixture:
  """Draws domains so that after n draws each has its share of n, to within one.

  The next domain is the one furthest behind its share (stride scheduling); on ties the
  first. The state is the number of draws of each domain.
  """

  def __init__(self, domains: Sequence[DomainConfig]):
    names = [d.name for d in domains]
    if not names or len(set(names)) != len(names):
      raise ValueError(f"domains {names} must be distinct and at least one")
    total = sum(d.weight for d in domains)
    self._share = {d.name: d.weight / total for d in domains}
    self.drawn = dict.fromkeys(names, 0)

  def draw(self, count: int) -> list[Draw]:
    """The next `count` tasks."""
    draws = []
    for _ in range(count):
      n = sum(self.drawn.values()) + 1
      name = max(self._share, key=lambda d: self._share[d] * n - self.drawn[d])
      draws.append(Draw(name, self.drawn[name]))
      self.drawn[name] += 1
    return draws

  def restore(self, drawn: dict[str, int]) -> None:
    """Goes on from a saved `drawn`; a new domain starts at 0, a removed one is dropped."""
    self.drawn = {name: drawn.get(name, 0) for name in self.drawn}


def task_seed(run_seed: int, domain: str, index: int) -> int:
  """Seed of the index-th task of a domain, 32 bits; other domains do not change it."""
  words = np.random.SeedSequence([run_seed, zlib.crc32(domain.encode()), index])
  return int(words.generate_state(1)[0])
