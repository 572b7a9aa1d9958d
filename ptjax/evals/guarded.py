"""The guard of a run as it goes on: floors, evidence, and whom to suspect."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptjax.evals.guard import (
  Action,
  GuardConfig,
  GuardSchedule,
  GuardState,
  Watch,
  review,
)
from ptjax.experience.balance import Seen
from ptjax.experience.mixture import Mixture


@dataclasses.dataclass(frozen=True)
class Guarded:
  """The guard between two evaluations.

  Attributes:
    floors: by guarded domain; fixed while the domain stays.
    state: what the tests remember.
    drawn: tasks that each domain had set at the last good evaluation.
    rates: training pass rate of each domain at that time; those of which nothing was seen lack.
  """

  floors: Mapping[str, float]
  state: GuardState
  drawn: Mapping[str, int]
  rates: Mapping[str, float]

  def to_record(self) -> dict[str, Any]:
    """Plain JSON for a checkpoint."""
    state = self.state
    return {
      "floors": dict(self.floors),
      "watches": {name: [w.history, w.alarms] for name, w in state.watches.items()},
      "paused": sorted(state.paused),
      "good_step": state.good_step,
      "drawn": dict(self.drawn),
      "rates": dict(self.rates),
    }

  @classmethod
  def of_record(cls, record: Mapping[str, Any]) -> "Guarded":
    watches = {
      name: Watch(tuple((passed, total) for passed, total in history), alarms)
      for name, (history, alarms) in record["watches"].items()
    }
    state = GuardState(watches, frozenset(record["paused"]), record["good_step"])
    return cls(record["floors"], state, record["drawn"], record["rates"])


def begin(floors: Mapping[str, float], step: int, mixture: Mixture) -> Guarded:
  """The guard at its first evaluation, which is good by definition."""
  state = GuardState(dict.fromkeys(floors, Watch()), frozenset(), step)
  return Guarded(floors, state, dict(mixture.drawn), pass_rates(mixture.seen))


def with_domains(
  guarded: Guarded,
  floors: Mapping[str, float],
  domains: Mapping[str, float | None],
  mixture: Mixture,
) -> Guarded:
  """After a resume under other domains.

  Args:
    guarded: as the checkpoint had it.
    floors: of domains that are new to the guard.
    domains: floor that the configuration gives to each domain of the run, or None. One that differs
      from the floor of the checkpoint replaces it, and that domain's evidence begins anew.
    mixture: of the run that goes on.
  """
  kept = {name: floor for name, floor in guarded.floors.items() if name in domains}
  moved = {n: f for n, f in domains.items() if f is not None and n in kept and f != kept[n]}
  fresh = dict.fromkeys({**moved, **floors}, Watch())
  watches = {name: guarded.state.watches[name] for name in kept} | fresh
  paused = guarded.state.paused & domains.keys()
  state = dataclasses.replace(guarded.state, watches=watches, paused=paused)
  drawn = {name: guarded.drawn.get(name, n) for name, n in mixture.drawn.items()}
  return dataclasses.replace(guarded, floors=kept | moved | dict(floors), state=state, drawn=drawn)


def pass_rates(seen: Mapping[str, Seen]) -> dict[str, float]:
  """Recent training pass rate of each domain that was seen."""
  return {name: s.fast[0] / s.fast[1] for name, s in seen.items() if s.fast[1] > 0}


def suspicion(guarded: Guarded, mixture: Mixture) -> dict[str, float]:
  """By domain that is drawn, how likely it does the harm.

      share of the tasks since the last good evaluation x (0.01 + rise of its training pass rate)

  What harms another domain is being learnt; a domain that is trained on and stands still moves the
  policy less. The hundredth decides between domains of which none rises.
  """
  spent = {name: n - guarded.drawn.get(name, 0) for name, n in mixture.drawn.items()}
  total, now = max(sum(spent.values()), 1), pass_rates(mixture.seen)
  rates = {
    name: n / total * (0.01 + max(0.0, now.get(name, 0.0) - guarded.rates.get(name, 0.0)))
    for name, n in spent.items()
    if name not in mixture.paused
  }
  return rates if len(rates) > 1 else {}  # the last one is not paused


def evaluate(
  guarded: Guarded,
  schedule: GuardSchedule,
  step: int,
  counts: Mapping[str, tuple[int, int]],
  mixture: Mixture,
) -> tuple[Guarded, list[Action]]:
  """Takes an evaluation in, see `guard.review`."""
  config = GuardConfig(guarded.floors, schedule.alpha, schedule.boost)
  suspects = suspicion(guarded, mixture)
  state, actions = review(config, guarded.state, step, counts, suspects, mixture.paused)
  if state.good_step != step:
    return dataclasses.replace(guarded, state=state), actions
  return Guarded(guarded.floors, state, dict(mixture.drawn), pass_rates(mixture.seen)), actions
