"""The regression guard: what to do when a domain's held-out pass rate falls under its floor.

Pure functions of the evaluations so far. A first alarm of a domain raises its weight, a second one
pauses the offender, a third one asks for the last good checkpoint. Each alarm is an anytime-valid
test (`core.sequential`), and all of a run together are false with probability `alpha` at most.
"""

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping

from ptjax.core.sequential import anytime_interval, log_evidence_below
from ptjax.core.stats import wilson_interval


class Kind(enum.StrEnum):
  """What an alarm leads to, in this order."""

  RAISE = "raise"
  PAUSE = "pause"
  ROLL_BACK = "roll_back"


STAGES = tuple(Kind)


LEAST_FLOOR = 0.02


@dataclasses.dataclass(frozen=True)
class GuardSchedule:
  """How a run uses the guard.

  Attributes:
    every: steps between evaluations of the guarded domains.
    tasks: held-out tasks of each, new ones every time.
    keep: the floor of a domain without `DomainConfig.floor` is this part of the lower end of its
      Wilson interval before training; a domain whose floor is under 0.02 then is not guarded.
    alpha, boost: see `GuardConfig`.
  """

  every: int = 20
  tasks: int = 50
  keep: float = 0.8
  alpha: float = 0.05
  boost: float = 2.0

  def __post_init__(self):
    if self.every < 1 or self.tasks < 1:
      raise ValueError(f"guard.every {self.every} and guard.tasks {self.tasks} must be >= 1")
    if not 0 < self.keep <= 1:
      raise ValueError(f"guard.keep {self.keep} must be in (0, 1]")
    _check_levels(self.alpha, self.boost)

  def floors(
    self, given: Mapping[str, float | None], before: Mapping[str, tuple[int, int]]
  ) -> dict[str, float]:
    """The floor of each guarded domain, from those given and (passed, total) before training."""
    floors = {}
    for name, floor in given.items():
      passed, total = before.get(name, (0, 0))
      measured = self.keep * wilson_interval(passed, total)[0] if total else 0.0
      chosen = measured if floor is None else floor
      if chosen >= LEAST_FLOOR or floor is not None:
        floors[name] = chosen
    return floors


def _check_levels(alpha: float, boost: float) -> None:
  if not 0 < alpha < 1 or not 1 < boost < math.inf:
    raise ValueError(f"guard.alpha {alpha} must be in (0, 1) and guard.boost {boost} above 1")


@dataclasses.dataclass(frozen=True)
class GuardConfig:
  """When the guard acts.

  Attributes:
    floors: held-out pass rate by domain that it must keep; other domains are not guarded.
    alpha: chance of a false alarm in the whole run, over all domains and stages.
    boost: factor of the weight of a domain that fell.
  """

  floors: Mapping[str, float]
  alpha: float = 0.05
  boost: float = 2.0

  def __post_init__(self):
    wrong = {name: floor for name, floor in self.floors.items() if not 0 < floor < 1}
    if wrong or not self.floors:
      raise ValueError(f"guard.floors {wrong or 'are empty'}: each must be in (0, 1)")
    _check_levels(self.alpha, self.boost)

  @property
  def level(self) -> float:
    """Of the test of one stage of one domain."""
    return self.alpha / (len(self.floors) * len(STAGES))


@dataclasses.dataclass(frozen=True)
class Watch:
  """A guarded domain.

  Attributes:
    history: (passed, total) of its evaluations since its last alarm.
    alarms: how many it has had.
  """

  history: tuple[tuple[int, int], ...] = ()
  alarms: int = 0


@dataclasses.dataclass(frozen=True)
class Action:
  """What is done, and why.

  Attributes:
    step: of the evaluation.
    kind: what is done.
    domain: whose rate fell.
    target: the domain whose weight is raised or which is paused; "" for a roll-back.
    floor: that of `domain`.
    history: the evaluations that tell it.
    high: anytime-valid upper bound of its rate over them, at the level of the test.
    log_evidence: against "the rate was at the floor or above all the time", and `limit`, which it
      has reached.
    to_step: the checkpoint to go back to; None for other kinds.
  """

  step: int
  kind: Kind
  domain: str
  target: str
  floor: float
  history: tuple[tuple[int, int], ...]
  high: float
  log_evidence: float
  limit: float
  to_step: int | None = None


@dataclasses.dataclass(frozen=True)
class GuardState:
  """All that the guard remembers.

  Attributes:
    watches: by guarded domain.
    paused: domains that must not be drawn.
    good_step: the last evaluation at which no guarded domain measured below its floor.
  """

  watches: Mapping[str, Watch]
  paused: frozenset[str] = frozenset()
  good_step: int = 0


def start(config: GuardConfig) -> GuardState:
  """The state before the first evaluation."""
  return GuardState(dict.fromkeys(config.floors, Watch()))


def review(
  config: GuardConfig,
  state: GuardState,
  step: int,
  counts: Mapping[str, tuple[int, int]],
  suspicion: Mapping[str, float],
  exempt: Collection[str] = (),
) -> tuple[GuardState, list[Action]]:
  """Takes one evaluation in.

  Args:
    config: floors and levels.
    state: before it.
    step: of the evaluation.
    counts: (passed, total) by domain; a guarded domain may be left out, if nothing could be scored.
    suspicion: by domain that trains: how likely it does the harm, as its share of what was trained
      on since `good_step`. The highest is paused, never the fallen domain itself.
    exempt: domains whose fall harms nobody: they are paused, and nothing is done for them.

  Returns:
    (state, actions), in the order of `floors`. Where nobody is left to pause, a roll-back takes the
    place of the pause. After a domain's third alarm there is nothing left to do about it.
  """
  watches, paused = dict(state.watches), set(state.paused)
  actions: list[Action] = []
  limit = math.log(1 / config.level)
  for domain, floor in config.floors.items():
    if domain in exempt:
      continue
    watch = watches[domain]
    if domain in counts and counts[domain][1] > 0:
      watch = dataclasses.replace(watch, history=(*watch.history, counts[domain]))
    evidence = log_evidence_below(watch.history, floor)
    if evidence < limit or watch.alarms >= len(STAGES):
      watches[domain] = watch
      continue
    kind, target = STAGES[watch.alarms], domain
    if kind is not Kind.RAISE:
      suspects = sorted(suspicion.keys() - paused - {domain})
      target = max(suspects, key=lambda name: suspicion[name], default="")
    if kind is Kind.ROLL_BACK or not target:
      kind, target = Kind.ROLL_BACK, ""
    if kind is Kind.PAUSE:
      paused.add(target)
    actions.append(
      Action(
        step=step,
        kind=kind,
        domain=domain,
        target=target,
        floor=floor,
        history=watch.history,
        high=anytime_interval(watch.history, 2 * config.level)[1],
        log_evidence=evidence,
        limit=limit,
        to_step=state.good_step if kind is Kind.ROLL_BACK else None,
      )
    )
    watches[domain] = Watch(alarms=watch.alarms + 1)
  guarded = config.floors.keys() - set(exempt)
  measured = {d: c for d, c in counts.items() if d in guarded and c[1] > 0}
  good = len(measured) == len(guarded) and all(
    passed / total >= config.floors[d] for d, (passed, total) in measured.items()
  )
  good_step = step if good and not actions else state.good_step
  return GuardState(watches, frozenset(paused), good_step), actions
