"""Looks after the domains between the steps of a run: evaluates, decides, acts, and says why.

What it remembers is part of `RLState`, so that a run killed and resumed decides the same.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ptjax.checkpoint.manager import Checkpoints
from ptjax.evals import guarded
from ptjax.evals.guard import Action, GuardSchedule, Kind
from ptjax.evals.heldout import EvalConfig, heldout, pass_rates
from ptjax.train import costs
from ptjax.train.hack_watch import HackWatch, check_lost
from ptjax.train.rl import RLState, StepDone
from ptjax.train.run_log import RunLog
from ptjax.train.session import Session

_EVALUATION = 0x6A  # of the sampling seeds, apart from those of the rollouts
_FIRST_TASK = 1_000_000  # after those that are evaluated before and after training


class Overseer:
  """The regression guard and the sensors of reward hacking at work; the account of costs.

  Args:
    session: of the run.
    checkpoints: those of the run; the last good one is preserved while a guard is at work.
    log: where decisions and evaluations are written.
    tell: takes a line for the person who watches.
  """

  def __init__(
    self, session: Session, checkpoints: Checkpoints, log: RunLog, tell: Callable[[str], None]
  ):
    self._session, self._checkpoints, self._log, self._tell = session, checkpoints, log, tell
    self._guard = session.experiment.rl.guard
    self._devices = session.policy_layout.mesh.size
    self._evaluated: dict[str, costs.Cost] = {}
    config = session.experiment.rl.hacking
    self._watch = None if config is None else HackWatch(session, config, log, tell)

  def begin(self, state: RLState) -> RLState:
    """The state in which the run starts or goes on: floors measured where they are not known.

    Raises:
      ValueError: no domain can be guarded.
    """
    if self._watch is None:
      state = dataclasses.replace(state, watched=None)
    else:
      state = self._watch.begin(state)
    if self._guard is None:
      return dataclasses.replace(state, guard=None)
    domains = {d.name: d.floor for d in self._session.experiment.domains}
    if state.guard is None:
      floors = self._floors(state, self._guard, domains)
      guard = guarded.begin(floors, state.step, state.mixture)
    else:
      new = {n: floor for n, floor in domains.items() if n not in state.guard.drawn}
      floors = self._floors(state, self._guard, new) if new else {}
      guard = guarded.with_domains(state.guard, floors, domains, state.mixture)
    if not guard.floors:
      raise ValueError(
        f"rl.guard: none of {sorted(domains)} passes often enough to have a floor; raise "
        f"rl.guard.tasks, give a domain a floor (DomainConfig.floor), or leave the guard out"
      )
    self._preserve(guard.state.good_step)
    return dataclasses.replace(state, guard=guard)

  def wants_save(self, state: RLState) -> bool:
    """Whether a roll-back may need the checkpoint of this step."""
    return state.guard is not None and state.guard.state.good_step == state.step

  def review(self, state: RLState, done: StepDone) -> tuple[RLState, dict[str, Any]]:
    """What `rl.train` does after a step; the metrics say how the guard stands."""
    spent = costs.of_step(
      self._session.experiment, self._session.model, state.step - 1, done, self._devices
    )
    checked: dict[str, costs.Cost] = {}
    metrics: dict[str, Any] = {}
    if self._watch is not None:
      state, metrics, checked = self._watch.review(state, done)
    state, more = self._guarded(state)
    for name in dict.fromkeys([*self._evaluated, *checked]):
      parts = [found[name] for found in (self._evaluated, checked) if name in found]
      spent.setdefault(name, {})[costs.EVALUATE] = costs.together(parts)
    self._evaluated = {}
    self._log.conflict(state.step - 1, done.cosines)
    self._log.costs(costs.to_record(state.step - 1, spent, done.played))
    return state, metrics | more

  def _guarded(self, state: RLState) -> tuple[RLState, dict[str, Any]]:
    if self._guard is None or state.guard is None:
      return state, {}
    actions: list[Action] = []
    if state.step % self._guard.every == 0:
      state, actions = self._evaluate(state, self._guard, state.guard)
    for action in actions:
      state = self._act(state, action, self._guard)
    alarms = state.guard.state.watches.values() if state.guard is not None else ()
    return state, {
      "guard/alarms": float(sum(watch.alarms for watch in alarms)),
      "guard/paused": float(len(state.mixture.paused)),
    }

  def _evaluate(
    self, state: RLState, schedule: GuardSchedule, guard: guarded.Guarded
  ) -> tuple[RLState, list[Action]]:
    names = [name for name in guard.floors if name not in state.mixture.paused]
    counts = self._pass_counts(state, schedule, names)
    before = guard.state.good_step
    guard, actions = guarded.evaluate(guard, schedule, state.step, counts, state.mixture)
    # The good one before stays until the checkpoint of the new one is complete.
    self._preserve(before, guard.state.good_step)
    return dataclasses.replace(state, guard=guard), actions

  def _act(self, state: RLState, action: Action, schedule: GuardSchedule) -> RLState:
    evidence = dataclasses.asdict(action)
    for name in ("step", "kind", "domain"):
      del evidence[name]
    self._log.decision(state.step - 1, action.kind, action.domain, evidence)
    self._tell(told(action))
    if action.kind is Kind.RAISE:
      state.mixture.scale(action.target, schedule.boost)
    elif action.kind is Kind.PAUSE:
      state.mixture.scale(action.target, 0.0)
    elif action.to_step is not None:
      return self._roll_back(state, action.to_step)
    return state

  def _roll_back(self, state: RLState, step: int) -> RLState:
    """The networks and optimisers of an earlier checkpoint; steps and tasks go on counting."""
    self._checkpoints.wait()
    now = {"policy": state.policy, "critic": state.critic}
    then = self._checkpoints.restore(step, {k: v for k, v in now.items() if v is not None})
    return dataclasses.replace(state, policy=then["policy"], critic=then.get("critic"))

  def _floors(
    self, state: RLState, schedule: GuardSchedule, domains: Mapping[str, float | None]
  ) -> dict[str, float]:
    self._tell(f"measuring the floors of {len(domains)} domains")
    before = self._pass_counts(state, schedule, list(domains))
    floors = schedule.floors(domains, before)
    for name in domains:
      passed, total = before.get(name, (0, 0))
      evidence = {"floor": floors.get(name), "passed": passed, "total": total}
      self._log.decision(state.step - 1, "floor", name, evidence)
    return floors

  def _pass_counts(
    self, state: RLState, schedule: GuardSchedule, names: list[str]
  ) -> dict[str, tuple[int, int]]:
    """(passed, scored) of new held-out tasks of these domains."""
    s, e = self._session, self._session.experiment
    s.engine.set_weights(s.policy.network(state.policy.params), state.step)
    domains = {name: s.domains[name] for name in names}
    config = EvalConfig(schedule.tasks, evaluation_seed(e.seed, state.step))
    first = _FIRST_TASK + state.step * schedule.tasks
    start = time.perf_counter()
    played = s.runner.run(
      heldout(s.engine, s.template, domains, s.services, e.policy, config, first)
    )
    seconds = time.perf_counter() - start
    self._evaluated = costs.of_episodes(played, s.model, seconds, self._devices)
    check_lost(e, state.step, played)
    rates = [rate for rate in pass_rates(played) if rate.domain != "all"]
    if state.step:
      self._log.evaluation("guard", state.step - 1, rates)
    return {rate.domain: (rate.passed, rate.total) for rate in rates}

  def _preserve(self, *steps: int) -> None:
    self._checkpoints.preserve(*steps)


def told(action: Action) -> str:
  """One line for the terminal."""
  passed, total = action.history[-1]
  what = {
    Kind.RAISE: "its weight is raised",
    Kind.PAUSE: f"{action.target} is paused",
    Kind.ROLL_BACK: f"back to the weights of step {action.to_step}",
  }[action.kind]
  return (
    f"guard: {action.domain} passes {passed} of {total}, below its floor {action.floor:.3f} "
    f"(at most {action.high:.3f}); {what}"
  )


def evaluation_seed(seed: int, step: int) -> int:
  """Seed of the sampling of an evaluation, 32 bits; none of the rollouts' is the same."""
  return int(np.random.SeedSequence([seed, step, _EVALUATION]).generate_state(1)[0])
