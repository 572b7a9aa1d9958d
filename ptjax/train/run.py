"""A run in a workdir: set up, evaluate, train, evaluate, save. Resumes by itself."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ptjax.algos.entropy import EntropyState
from ptjax.checkpoint.manager import Checkpoints, check_kind, check_model
from ptjax.core.config import config_hash
from ptjax.core.metrics import MetricsWriter, summarize
from ptjax.evals import hacking
from ptjax.evals.guarded import Guarded
from ptjax.evals.heldout import PassRate, heldout, pass_rates
from ptjax.experience.collect import Played
from ptjax.experience.mixture import Mixture
from ptjax.train import adapters, domain_changes
from ptjax.train.domain_changes import Change
from ptjax.train.experiment import Experiment
from ptjax.train.manifest import write_run_manifest
from ptjax.train.overseer import Overseer
from ptjax.train.rl import PreemptionFlag, RLState, initial_entropy, train
from ptjax.train.run_log import RunLog
from ptjax.train.session import Session, open_session

_SAMPLES_PER_STEP = 4


class Preempted(Exception):
  """SIGTERM came; a checkpoint was saved and the run can go on from it."""


@dataclasses.dataclass(frozen=True)
class Observer:
  """What a front end is told while the run goes on.

  Attributes:
    on_status: one line about what happens now.
    on_step: the record of a finished step, as written to metrics.jsonl.
    on_eval: `(when, pass rates)`, when being before or after.
  """

  on_status: Callable[[str], None]
  on_step: Callable[[int, dict[str, Any]], None]
  on_eval: Callable[[str, Sequence[PassRate]], None]


SILENT = Observer(lambda _: None, lambda *_: None, lambda *_: None)


def run(experiment: Experiment, workdir: pathlib.Path, observer: Observer = SILENT) -> None:
  """Trains to the end, or goes on where the last checkpoint left off.

  Raises:
    ValueError: a configuration, a model or a checkpoint that cannot be used.
    Preempted: SIGTERM was received and the state saved.
  """
  flag = PreemptionFlag()
  flag.install()
  with contextlib.ExitStack() as stack:
    observer.on_status("loading the model and starting the sandboxes")
    session = stack.enter_context(open_session(experiment, workdir))
    write_run_manifest(session, workdir)
    checkpoints = Checkpoints(workdir, experiment.checkpoint)
    stack.callback(checkpoints.close)
    state = restore(session, checkpoints, observer)
    writer = stack.enter_context(MetricsWriter(workdir, resume_step=state.step))
    log = RunLog(workdir, state.step)

    log_changes(session, checkpoints, state, log, observer)

    measure(session, state, log, "before", observer)
    overseer = Overseer(session, checkpoints, log, observer.on_status)
    state = overseer.begin(state)
    if state.step == 0 and overseer.wants_save(state) and not checkpoints.has(0):
      save(session, checkpoints, state)

    def on_step(state: RLState, metrics: dict[str, Any], played: list[Played]) -> None:
      step = state.step - 1
      record = writer.write(step, summarize(metrics))
      log.samples("train", step, played[:: max(1, len(played) // _SAMPLES_PER_STEP)])
      observer.on_step(step, record)
      last = state.step == experiment.rl.num_steps
      due = state.step % experiment.checkpoint.every == 0 or overseer.wants_save(state)
      if last or flag.is_set or due:
        save(session, checkpoints, state)
      if flag.is_set and not last:
        checkpoints.wait()
        raise Preempted(f"stopped by SIGTERM after step {step}; the checkpoint is saved")

    state = train(session, state, on_step, overseer.review)
    measure(session, state, log, "after", observer)
    checkpoints.wait()
    observer.on_status(f"checkpoint: {checkpoints.path(state.step)}")


def evaluate(
  experiment: Experiment, workdir: pathlib.Path, observer: Observer = SILENT
) -> list[PassRate]:
  """Held-out pass rates of the newest checkpoint of a workdir, or of the starting weights."""
  with contextlib.ExitStack() as stack:
    session = stack.enter_context(open_session(experiment, workdir))
    checkpoints = Checkpoints(workdir, experiment.checkpoint)
    stack.callback(checkpoints.close)
    state = restore(session, checkpoints, observer)
    rates, _ = _evaluate(session, state)
    observer.on_eval(f"step {state.step}", rates)
    return rates


def measure(session: Session, state: RLState, log: RunLog, when: str, observer: Observer) -> None:
  """The held-out evaluation before or after training; done once a run."""
  e = session.experiment
  if e.eval.tasks_per_domain == 0 or log.has(when) or (when == "before" and state.step > 0):
    return
  observer.on_status(f"held-out evaluation {when} training")
  rates, played = _evaluate(session, state)
  # Step -1 is before step 0: a resumed run keeps this record.
  step = -1 if when == "before" else state.step - 1
  log.samples(when, step, played)
  log.evaluation(when, step, rates)
  observer.on_eval(when, rates)


def _evaluate(session: Session, state: RLState) -> tuple[list[PassRate], list[Played]]:
  e = session.experiment
  session.engine.set_weights(session.policy.network(state.policy.params), state.step)
  played = session.runner.run(
    heldout(session.engine, session.template, session.domains, session.services, e.policy, e.eval)
  )
  return pass_rates(played), played


def save(session: Session, checkpoints: Checkpoints, state: RLState) -> None:
  """Saves all that the next step needs."""
  meta = {
    "model": _model_record(session),
    "config_hash": config_hash(session.experiment),
    "mixture": state.mixture.state(),
    "domains": domain_changes.record(session),
    "entropy": state.entropy,
    "guard": None if state.guard is None else state.guard.to_record(),
    "watched": None if state.watched is None else hacking.to_record(state.watched),
    "jax": jax.__version__,
  }
  arrays = {"policy": state.policy, "critic": state.critic}
  checkpoints.save(state.step, {k: v for k, v in arrays.items() if v is not None}, meta)


def _model_record(session: Session) -> dict[str, Any]:
  """What must agree between a checkpoint and the run that goes on from it."""
  c = session.critic
  return (
    session.model.identity()
    | {
      "start": session.model_hash,
      "critic": None if c is None else c.model.identity() | adapters.record(c.config.lora),
    }
    | adapters.record(session.experiment.model.lora)
  )


def changes_since(session: Session, meta: dict[str, Any]) -> list[Change]:
  """Of the domains, since a checkpoint; none for one from before domains had versions."""
  then = meta.get("domains")
  return [] if then is None else domain_changes.changes(then, domain_changes.record(session))


def log_changes(
  session: Session, checkpoints: Checkpoints, state: RLState, log: RunLog, observer: Observer
) -> None:
  """Says which domains have come, gone or changed since the newest checkpoint."""
  step = checkpoints.latest()
  if step is None:
    return
  for change in changes_since(session, checkpoints.meta(step)):
    log.decision(state.step - 1, change.kind, change.domain, change.evidence)
    observer.on_status(f"domain {change.domain}: {change.kind}")


def restore(session: Session, checkpoints: Checkpoints, observer: Observer) -> RLState:
  """The newest checkpoint, or the state at step 0.

  Raises:
    ValueError: the checkpoint is of another model, or started from other weights.
  """
  mixture = Mixture(session.experiment.domains, session.experiment.rl.balance)
  policy, critic = session.init_policy(), session.init_critic()
  step = checkpoints.latest()
  if step is None:
    return RLState(0, policy, critic, mixture, initial_entropy(session.experiment))
  meta = checkpoints.meta(step)
  check_kind(meta, "mixture", checkpoints.path(step))
  check_model(meta["model"], _model_record(session), checkpoints.path(step))
  like = {"policy": policy, "critic": critic}
  arrays = checkpoints.restore(step, {k: v for k, v in like.items() if v is not None})
  session.release_start()
  changed = changes_since(session, meta)
  meta = domain_changes.without_seen(
    meta, {c.domain for c in changed if c.kind == domain_changes.REVERSIONED}
  )
  mixture.restore(meta["mixture"])
  observer.on_status(f"resumed from step {step}")
  # A control that the checkpoint does not know yet starts now.
  entropy = initial_entropy(session.experiment)
  if entropy is not None and meta.get("entropy") is not None:
    entropy = EntropyState(*meta["entropy"])
  record = meta.get("guard")
  guard = None if record is None else Guarded.of_record(record)
  record = meta.get("watched")
  watched = None if record is None else hacking.of_record(record)
  return RLState(step, arrays["policy"], arrays.get("critic"), mixture, entropy, guard, watched)
