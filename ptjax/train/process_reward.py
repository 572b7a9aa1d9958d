"""Process reward models: whether an answer is right so far, at the end of each of its steps.

  loss = -y log sigmoid(score) - (1 - y) log sigmoid(-score)      mean over the steps of the batch

Source: Lightman et al. 2023, section 2.5. The trunk, the heads and the file are those of
`train.reward_model`; `rewards.process.process_leaf` reads the scores.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.core.calibration import expected_calibration_error, reliability
from ptjax.core.metrics import Mean
from ptjax.data.annotated_steps import AnnotatedSteps, read_steps
from ptjax.experience.packing import Rows, pack
from ptjax.models import heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rewards.process import process_text
from ptjax.rewards.reward_model import DIRECTORY, SHARED, RewardModel
from ptjax.sharding.mesh import make_mesh
from ptjax.train import adapters, supervised
from ptjax.train.batch import micro_batches
from ptjax.train.examples import Shuffled, is_heldout, prompt_key
from ptjax.train.loading import Loaded, check_rows, load_model, record_model
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import Array
from ptjax.train.pairs import write_origins
from ptjax.train.reward_model import (
  RewardExperiment,
  init_reward_model,
  read_state,
  slot_states,
)
from ptjax.train.supervised import Drive, FitObserver, Problem


class StepBatch(NamedTuple):
  """Packed rows whose slots are step ends; all arrays by slot.

  Attributes:
    rows: packed rows.
    labels_BA: f32, 1 where the answer is right so far.
    weights_BA: f32, share of the step in the loss of the global batch.
    domain_BA: i32, the head that judges it.
  """

  rows: Rows
  labels_BA: Array
  weights_BA: Array
  domain_BA: Array


def step_scores(
  params: Params, batch: StepBatch, model: DecoderConfig, constrain: Constrain
) -> jax.Array:
  """scores[B * A, M] of every slot."""
  hidden = slot_states(model, params, batch.rows, constrain)
  return heads.domain_scores(params["head"], hidden, batch.domain_BA.reshape(-1))


def step_loss(params: Params, batch: StepBatch, *, model: DecoderConfig, constrain: Constrain):
  """sum over steps of weight * cross-entropy, the mean over the members; and metrics."""
  scores_PM = step_scores(params, batch, model, constrain)
  real_P1 = jnp.asarray(batch.rows.mask_BA).reshape(-1, 1)
  labels_P1 = batch.labels_BA.reshape(-1, 1)
  # -y log sigmoid(s) - (1 - y) log sigmoid(-s) = softplus(s) - y s
  losses_PM = jax.nn.softplus(scores_PM) - labels_P1 * scores_PM
  weights_P1 = batch.weights_BA.reshape(-1, 1)
  loss = jnp.sum(jnp.where(real_P1, losses_PM, 0) * weights_P1) / scores_PM.shape[1]
  right_PM = jax.lax.stop_gradient((scores_PM > 0) == (labels_P1 > 0.5))
  return loss, {"process/accuracy": Mean.of(right_PM, real_P1)}


def step_batches(
  items: Sequence[AnnotatedSteps], loaded: Loaded, names: tuple[str, ...], e: RewardExperiment
) -> list[StepBatch]:
  """Micro-batches of one update."""
  texts = [process_text(loaded.template, i.messages, i.answer, i.steps, i.domain) for i in items]
  examples = [dataclasses.replace(read_state(t), group=g) for g, t in enumerate(texts)]
  packed = pack(examples, e.pack)
  total = sum(len(i.labels) for i in items)
  domain_of = [0 if names == (SHARED,) else names.index(i.domain) for i in items]
  whole = StepBatch(
    packed.rows,
    packed.spread([np.asarray(i.labels, np.float32) for i in items]),
    packed.spread([1 / total] * len(items)),
    packed.spread([float(d) for d in domain_of]).astype(np.int32),
  )
  return list(micro_batches(whole, e.pack.rows))


def process_problem(
  loaded: Loaded,
  train: Sequence[AnnotatedSteps],
  heldout: Sequence[AnnotatedSteps],
  e: RewardExperiment,
) -> Problem:
  """The problem of a run on given answers."""
  names = tuple(sorted({i.domain for i in train})) if e.reward.per_domain else (SHARED,)
  if e.reward.per_domain and (lacking := {i.domain for i in heldout} - set(names)):
    raise ValueError(
      f"domain {min(lacking)!r} has held-out answers only, so its head cannot be trained; add "
      f"answers, or set reward.per_domain=False"
    )
  trunk, start = init_reward_model(loaded, e.reward, len(names), e.seed)
  constrain = loaded.layout.constrain
  loss = functools.partial(step_loss, model=trunk, constrain=constrain)
  trainer = Trainer(loss, e.optimizer, e.fit.num_steps, adapters.trunk_frozen(start, loaded.lora))
  score = jax.jit(functools.partial(step_scores, model=trunk, constrain=constrain))

  def batches(params: Params, items: Sequence[AnnotatedSteps]) -> tuple[list[StepBatch], dict]:
    del params
    return step_batches(items, loaded, names, e), {}

  def measured(params: Params) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Accuracy, calibration of sigmoid(score), and the reliability table."""
    if not heldout:
      return {}, []
    scores, labels = [], []
    for batch in step_batches(heldout, loaded, names, e):
      all_PM = jax.device_get(score(params, loaded.layout.place_rows(batch)))
      real = np.asarray(batch.rows.mask_BA).reshape(-1)
      scores.append(all_PM.mean(axis=1)[real])
      labels.append(np.asarray(batch.labels_BA).reshape(-1)[real] > 0.5)
    flat, right = np.concatenate(scores).astype(np.float64), np.concatenate(labels)
    table = reliability(np.exp(-np.logaddexp(0, -flat)), right, bins=e.reward.bins)
    metrics = {
      "process/accuracy": float(np.mean((flat > 0) == right)),
      "process/nll": float(np.mean(np.logaddexp(0, flat) - right * flat)),
      "process/ece": expected_calibration_error(table),
    }
    return metrics, [dataclasses.asdict(b) for b in table if b.count]

  def finish(params: Params, workdir: pathlib.Path) -> str:
    metrics, table = measured(params)
    # The scores are log-odds of being right: nothing has to be subtracted from them.
    offsets = dict.fromkeys(names, 0.0)
    model = RewardModel(
      trunk, params, loaded.template, names, offsets, e.model.source, loaded.content_hash
    )
    model.save(workdir / DIRECTORY, {"heldout": metrics, "reliability": table})
    return f"reward model: {workdir / DIRECTORY}"

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(adapters.trunk_trainable(start, trunk, loaded.layout, loaded.lora)),
    source=Shuffled(train, e.seed),
    batches=batches,
    place=loaded.layout.place_rows,
    heldout=lambda params: measured(params)[0],
    identity=trunk.identity()
    | {"start": loaded.content_hash, "heads": names, "members": e.reward.members, "steps": True}
    | adapters.record(loaded.lora),
    finish=finish,
  )


def run(
  e: RewardExperiment, workdir: pathlib.Path, observer: FitObserver, drive: Drive = supervised.run
) -> None:
  """Trains a process reward model, or resumes; leaves it in `<workdir>/reward_model`."""
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  observer.on_status("loading the model and the judged answers")
  loaded = load_model(e.model, mesh, e.rules)
  record_model(e.model, loaded, workdir)
  items = read_steps(e.data.path, licenses=e.data.licenses)
  write_origins(workdir, e.data.path, items)
  held = [is_heldout(prompt_key(i.messages), e.data.heldout) for i in items]
  train = [i for i, h in zip(items, held, strict=True) if not h]
  heldout = [i for i, h in zip(items, held, strict=True) if h]
  observer.on_status(f"{len(train)} answers to train on, {len(heldout)} held out")
  problem = process_problem(loaded, train, heldout, e)
  drive(problem, e.fit, e.checkpoint, workdir, observer)
