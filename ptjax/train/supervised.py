"""Supervised training: draw examples, update, measure what is held out. Reads top to bottom.

SFT, preferences and reward models share this loop; each of them is a `Problem`.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints, check_kind, check_model
from ptjax.core.metrics import MetricsWriter, append_jsonl, drop_from_step, summarize
from ptjax.models.decoder import Params
from ptjax.models.matrices import densify
from ptjax.train.examples import Source
from ptjax.train.networks import Trainer, TrainState
from ptjax.train.rl import PreemptionFlag
from ptjax.train.run import Preempted

HELDOUT_FILE = "heldout.jsonl"


@dataclasses.dataclass(frozen=True)
class FitConfig:
  """Length and size of a supervised run.

  Attributes:
    num_steps: updates.
    batch_size: examples (or pairs) of an update.
    eval_every: updates between held-out evaluations; 0 measures before and after only.
    logit_chunk: action slots of a row whose logits exist at a time.
  """

  num_steps: int = 100
  batch_size: int = 16
  eval_every: int = 0
  logit_chunk: int = 256

  def __post_init__(self):
    for name, least in (("num_steps", 1), ("batch_size", 1), ("eval_every", 0), ("logit_chunk", 1)):
      if getattr(self, name) < least:
        raise ValueError(f"fit.{name} {getattr(self, name)} must be >= {least}")


@dataclasses.dataclass(frozen=True)
class Problem:
  """What a run trains, on which examples, and how it is measured.

  Attributes:
    trainer: the loss and the optimiser.
    init: the network at update 0.
    source: the training examples.
    batches: `(params, examples) -> (micro-batches of one update, metrics)`; each micro-batch is on
      the host and has `rows`. Without any, nothing is updated in this step.
    place: puts a micro-batch onto the mesh.
    heldout: `params -> metrics` on the held-out examples.
    identity: what must agree between a checkpoint and the run that goes on from it.
    finish: called with the trained parameters, adapters merged, and the workdir; says what it left
      there, or "".
  """

  trainer: Trainer
  init: Callable[[], TrainState]
  source: Source[Any]
  batches: Callable[[Params, Sequence[Any]], tuple[Sequence[Any], dict[str, Any]]]
  place: Callable[[Any], Any]
  heldout: Callable[[Params], dict[str, Any]]
  identity: Mapping[str, Any]
  finish: Callable[[Params, pathlib.Path], str] = lambda params, workdir: ""


@dataclasses.dataclass(frozen=True)
class FitState:
  """All that changes from step to step: the next step, the network, and the place in the data."""

  step: int
  network: TrainState
  source: Source[Any]


@dataclasses.dataclass(frozen=True)
class FitObserver:
  """What a front end is told: status lines, the record of each step, held-out results."""

  on_status: Callable[[str], None] = lambda line: None
  on_step: Callable[[int, dict[str, Any]], None] = lambda step, record: None
  on_heldout: Callable[[str, dict[str, Any]], None] = lambda when, result: None


def fit(
  problem: Problem, state: FitState, config: FitConfig, on_step: Callable[..., None]
) -> FitState:
  """Runs the updates that are left; `on_step` logs and saves after each."""
  while state.step < config.num_steps:
    start = time.perf_counter()
    examples = state.source.take(config.batch_size)
    batches, metrics = problem.batches(problem.trainer.network(state.network.params), examples)
    prepared = time.perf_counter()
    tokens = sum(int((batch.rows.segment_ids_BT > 0).sum()) for batch in batches)
    network = state.network
    if batches:
      network, more = problem.trainer.update(network, map(problem.place, batches))
      jax.block_until_ready(network.params)
      own = ("loss", "grad_norm", "lr")
      metrics = metrics | {f"optim/{k}" if k in own else k: v for k, v in more.items()}
    end = time.perf_counter()
    metrics = metrics | {
      "perf/time_prepare": prepared - start,
      "perf/time_total": end - start,
      "perf/train_tokens_per_s": tokens / (end - prepared),
    }
    state = FitState(state.step + 1, network, state.source)
    on_step(state, metrics)
  return state


def run(
  problem: Problem,
  config: FitConfig,
  saving: CheckpointConfig,
  workdir: pathlib.Path,
  observer: FitObserver,
) -> TrainState:
  """Trains to the end, or goes on where the last checkpoint left off.

  Raises:
    ValueError: a checkpoint that cannot be used, or a loss that is no number.
    Preempted: SIGTERM was received and the state saved.
  """
  flag = PreemptionFlag()
  flag.install()
  with contextlib.ExitStack() as stack:
    checkpoints = Checkpoints(workdir, saving)
    stack.callback(checkpoints.close)
    state = _restore(problem, checkpoints, observer)
    writer = stack.enter_context(MetricsWriter(workdir, resume_step=state.step))
    heldout = _Heldout(problem, workdir, state.step, observer)
    if state.step == 0:
      heldout.measure("before", -1, state)

    def on_step(state: FitState, metrics: dict[str, Any]) -> None:
      step = state.step - 1
      record = writer.write(step, summarize(metrics))
      if record.get("optim/loss", 0.0) is None:
        raise ValueError(
          f"step {step}: the loss is not finite; go back to the last checkpoint with a lower "
          f"optimizer.learning_rate or optimizer.max_grad_norm"
        )
      observer.on_step(step, record)
      last = state.step == config.num_steps
      if config.eval_every and state.step % config.eval_every == 0 and not last:
        heldout.measure(f"step {state.step}", step, state)
      if last or flag.is_set or state.step % saving.every == 0:
        _save(problem, checkpoints, state)
      if flag.is_set and not last:
        checkpoints.wait()
        raise Preempted(f"stopped by SIGTERM after step {step}; the checkpoint is saved")

    state = fit(problem, state, config, on_step)
    heldout.measure("after", state.step - 1, state)
    checkpoints.wait()
    if left := problem.finish(densify(problem.trainer.network(state.network.params)), workdir):
      observer.on_status(left)
    observer.on_status(f"checkpoint: {checkpoints.path(state.step)}")
    return state.network


def evaluate(
  problem: Problem,
  config: FitConfig,
  saving: CheckpointConfig,
  workdir: pathlib.Path,
  observer: FitObserver,
) -> dict[str, float | None]:
  """Measures the newest checkpoint, or the start, on the held-out examples; writes nothing.

  A `Drive` as `run`.

  Raises:
    ValueError: a checkpoint that cannot be used.
  """
  del config
  with contextlib.closing(Checkpoints(workdir, saving)) as checkpoints:
    state = _restore(problem, checkpoints, observer)
  result = _measured(problem, state.network.params)
  observer.on_heldout(f"step {state.step}", result)
  return result


def _measured(problem: Problem, params: Params) -> dict[str, float | None]:
  """Held-out results; None where there is no number."""
  result = summarize(problem.heldout(problem.trainer.network(params)))
  return {k: v if np.isfinite(v) else None for k, v in result.items()}


Drive = Callable[[Problem, FitConfig, CheckpointConfig, pathlib.Path, FitObserver], Any]
"""What is done with a problem: `run` or `evaluate`."""


class _Heldout:
  """Held-out results, one line each in heldout.jsonl; each is computed once a run."""

  def __init__(self, problem: Problem, workdir: pathlib.Path, step: int, observer: FitObserver):
    self._problem, self._observer = problem, observer
    self._path = workdir / HELDOUT_FILE
    self._done = {record["when"] for record in drop_from_step(self._path, step)}

  def measure(self, when: str, step: int, state: FitState) -> None:
    if when in self._done:
      return
    self._observer.on_status(f"held-out examples, {when}")
    finite = _measured(self._problem, state.network.params)
    append_jsonl(self._path, [{"when": when, "step": step, **finite}])
    self._observer.on_heldout(when, finite)


def _save(problem: Problem, checkpoints: Checkpoints, state: FitState) -> None:
  meta = {"model": problem.identity, "data": state.source.state(), "jax": jax.__version__}
  checkpoints.save(state.step, {"network": state.network}, meta)


def _restore(problem: Problem, checkpoints: Checkpoints, observer: FitObserver) -> FitState:
  """The newest checkpoint, or the state at step 0."""
  network, step = problem.init(), checkpoints.latest()
  if step is None:
    return FitState(0, network, problem.source)
  meta = checkpoints.meta(step)
  check_kind(meta, "data", checkpoints.path(step))
  # Through JSON, as the record went: a tuple came back as a list.
  identity = json.loads(json.dumps(problem.identity))
  check_model(meta["model"], identity, checkpoints.path(step))
  problem.source.restore(meta["data"])
  observer.on_status(f"resumed from step {step}")
  network = checkpoints.restore(step, {"network": network})["network"]
  return FitState(step, network, problem.source)
