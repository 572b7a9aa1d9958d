"""Reward models from comparisons: Bradley-Terry, one head a domain, ensembles of heads."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.algos.preference import bradley_terry
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.calibration import expected_calibration_error, reliability
from ptjax.core.metrics import Mean
from ptjax.core.stats import wilson_interval
from ptjax.data.annotated_pairs import AnnotatedPair
from ptjax.data.assistant_mask import Example
from ptjax.experience.packing import PackConfig, Packed, Rows
from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rewards.reward_model import DIRECTORY, SHARED, RewardModel, ScoredText, answer_text
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import adapters, supervised
from ptjax.train.examples import Shuffled
from ptjax.train.experiment import ModelConfig
from ptjax.train.forward import action_states
from ptjax.train.loading import Loaded, check_rows, load_model, record_model
from ptjax.train.networks import Layout, Trainer, critic_params
from ptjax.train.objectives import Array
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import (
  PairsConfig,
  common_prefix,
  padded,
  place_pairs,
  read_split,
  slot_index,
  whole_parts,
)
from ptjax.train.supervised import Drive, FitConfig, FitObserver, Problem

# M: members of the ensemble. P: pairs of one micro-batch, padded to the batch size.


@dataclasses.dataclass(frozen=True)
class RewardModelConfig:
  """The network and its loss.

  Attributes:
    num_layers: its trunk is the policy's first layers; None takes all.
    members: heads of the ensemble. Each starts elsewhere and weighs each pair by a draw of its
      own from Poisson(1), the bootstrap (Oza and Russell 2001). They share the trunk, so they
      disagree less than models trained apart would.
    per_domain: a head for each domain of the training data; else one for all.
    label_smoothing: probability that an annotator's label is wrong.
    use_margin: ask for the annotated margin between the scores.
    center_coef: weight of (c + r)^2, which keeps the scores' mean at 0 (Eisenstein et al. 2023).
    bins: of the reliability table.
  """

  num_layers: int | None = None
  members: int = 1
  per_domain: bool = True
  label_smoothing: float = 0.0
  use_margin: bool = True
  center_coef: float = 0.01
  bins: int = 10

  def __post_init__(self):
    for name in ("num_layers", "members", "bins"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f"reward.{name} {value} must be >= 1")
    if not 0 <= self.label_smoothing < 0.5:
      raise ValueError(f"reward.label_smoothing {self.label_smoothing} must be in [0, 0.5)")
    if not self.center_coef >= 0:
      raise ValueError(f"reward.center_coef {self.center_coef} must be >= 0")


@dataclasses.dataclass(frozen=True)
class RewardExperiment:
  """A run that trains a reward model.

  Attributes:
    data: the comparisons.
    name, seed: of the run; the seed decides the heads, the bootstrap and the order of the pairs.
    steps: the data are answers judged step by step (`data.annotated_steps`), and a process reward
      model is trained, see `train.process_reward`.
    reward: the network and its loss.
    model, mesh, rules: what it starts from and where it lives.
    pack: shape of the rows; both answers to a prompt must fit into one micro-batch.
    fit, optimizer, checkpoint: the rest; a batch is of pairs.
  """

  data: PairsConfig
  name: str = "reward"
  seed: int = 0
  steps: bool = False
  reward: RewardModelConfig = RewardModelConfig()
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  pack: PackConfig = PackConfig()
  fit: FitConfig = FitConfig()
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  checkpoint: CheckpointConfig = CheckpointConfig()

  def __post_init__(self):
    self.model.refuse_router()
    if self.steps and (self.reward.label_smoothing or self.reward.members > 1):
      raise ValueError(
        f"reward.label_smoothing {self.reward.label_smoothing} and members {self.reward.members} "
        f"belong to comparisons; with steps=True set them to 0 and 1"
      )


@dataclasses.dataclass(frozen=True)
class Ranked:
  """A pair as tokens: chosen and rejected, the head that judges it, its margin and weights."""

  answers: tuple[Example, Example]
  domain: int
  margin: float
  weights: tuple[float, ...]


class RewardBatch(NamedTuple):
  """One micro-batch of pairs.

  Attributes:
    rows: packed rows; the state before slot i is that of an answer's last token.
    chosen_P, rejected_P: i32, flat slots of the two answers.
    domain_P: i32, the head that judges the pair.
    margin_P: f32.
    weights_PM: f32, share of the pair in each member's loss of the global batch; 0 for padding.
  """

  rows: Rows
  chosen_P: Array
  rejected_P: Array
  domain_P: Array
  margin_P: Array
  weights_PM: Array


def read_state(text: ScoredText) -> Example:
  """A text whose states at its ends are read, in the form that packing knows.

  Packing stores the state *before* an action. So a token is added after the text, which nothing
  attends to, and the token after each end is marked:

    tokens  p q a b +        ends  1 3
    action  0 0 1 0 1        states read: before a (at q), before + (at b)
  """
  mask = np.zeros(len(text.tokens) + 1, bool)
  mask[np.asarray(text.ends) + 1] = True
  return Example(np.append(text.tokens, text.tokens[-1]).astype(np.int32), mask)


def slot_states(
  model: DecoderConfig, params: Params, rows: Rows, constrain: Constrain
) -> jax.Array:
  """hidden[B * A, D] of the trunk before each slot."""
  hidden_BAD = action_states(model, params["trunk"], rows, constrain)
  return hidden_BAD.reshape(-1, hidden_BAD.shape[-1])


def reward_loss(
  params: Params,
  batch: RewardBatch,
  *,
  model: DecoderConfig,
  config: RewardModelConfig,
  constrain: Constrain,
):
  """sum over pairs and members of weight * (-log sigmoid(c - r - margin) + centering)."""
  hidden = slot_states(model, params, batch.rows, constrain)
  chosen_PM, rejected_PM = (
    heads.domain_scores(params["head"], hidden[at_P], batch.domain_P)
    for at_P in (batch.chosen_P, batch.rejected_P)
  )
  margin_P1 = batch.margin_P[:, None] * config.use_margin
  losses_PM, aux = bradley_terry(
    chosen_PM, rejected_PM, margin_P1, label_smoothing=config.label_smoothing
  )
  losses_PM += config.center_coef * jnp.square(chosen_PM + rejected_PM)
  real_PM = batch.weights_PM > 0
  loss = jnp.sum(jnp.where(real_PM, losses_PM, 0) * batch.weights_PM)
  gap_PM = jax.lax.stop_gradient(chosen_PM - rejected_PM)
  metrics = {
    "reward_model/accuracy": Mean.of(aux["correct"], real_PM),
    "reward_model/margin": Mean.of(gap_PM, real_PM),
  }
  return loss, metrics


def init_reward_model(
  loaded: Loaded, config: RewardModelConfig, num_domains: int, seed: int
) -> tuple[DecoderConfig, Params]:
  """(shape of the trunk, parameters on the mesh): the policy's first layers and random heads."""
  depth = config.num_layers or loaded.model.num_layers
  if depth > loaded.model.num_layers:
    raise ValueError(
      f"reward.num_layers {depth} exceeds the {loaded.model.num_layers} layers of the model"
    )
  trunk = dataclasses.replace(loaded.model.first(depth), tie_embeddings=True)
  params = critic_params(loaded.start, depth)
  key = jax.random.fold_in(jax.random.key(seed), 0x52)
  params["head"] = heads.init_reward_head(key, trunk.d_model, config.members, num_domains)
  head_axes = {"w": (None, None, "embed"), "b": (None, None)}
  if loaded.lora is not None:  # the trunk is frozen: it stays where the model has put it
    params["head"] = loaded.layout.place(params["head"], head_axes)
    return trunk, params
  axes = {"trunk": decoder.logical_axes(trunk), "head": head_axes}
  return trunk, jax.tree.map(jnp.copy, loaded.layout.place(params, axes))


def rank(
  loaded: Loaded, pairs: Sequence[AnnotatedPair], names: tuple[str, ...], e: RewardExperiment
) -> list[Ranked]:
  """Tokens of the pairs; the bootstrap weights of pair n depend on the seed and n."""
  out = []
  for i, pair in enumerate(pairs):
    answers = [
      read_state(answer_text(loaded.template, pair.messages, text or "", pair.domain))
      for text in (pair.chosen, pair.rejected)
    ]
    weights = np.ones(1)
    if e.reward.members > 1:
      weights = np.random.default_rng([e.seed, 0xB0, i]).poisson(1.0, e.reward.members)
    domain = 0 if names == (SHARED,) else names.index(pair.domain)
    out.append(Ranked((answers[0], answers[1]), domain, pair.margin, tuple(map(float, weights))))
  return out


def reward_batch(items: Sequence[Ranked], packed: Packed, width: int, share: float) -> RewardBatch:
  """One micro-batch; every pair and member has the same share of the loss, times its weight."""
  slots = [slot_index(packed.rows, place) for place in packed.places]
  weights_PM = np.zeros((width, len(items[0].weights)), np.float32)
  weights_PM[: len(items)] = np.asarray([i.weights for i in items]) * share
  return RewardBatch(
    packed.rows,
    padded(slots[0::2], width, np.int32),
    padded(slots[1::2], width, np.int32),
    padded([i.domain for i in items], width, np.int32),
    padded([i.margin for i in items], width, np.float32),
    weights_PM,
  )


def pair_metrics(
  scores_QM: tuple[np.ndarray, np.ndarray], domains: Sequence[str], bins: int
) -> tuple[dict[str, float], dict[str, Any]]:
  """(metrics, report) of held-out pairs from the raw scores of their chosen and rejected answers.

  The ensemble's score is the mean of its members. sigmoid(c - r) is the probability that the
  chosen answer is the better one; its calibration is that of the likelier of the two outcomes.
  Disagreement is the standard deviation over the members of c - r, its mean over pairs.
  """
  gap_QM = scores_QM[0].astype(np.float64) - scores_QM[1]
  gap = gap_QM.mean(axis=1)
  right = gap > 0
  confidence = 1 / (1 + np.exp(-np.abs(gap)))
  table = reliability(confidence, right, bins=bins, low=0.5)
  low, high = wilson_interval(int(right.sum()), len(right))
  metrics = {
    "reward_model/accuracy": float(right.mean()),
    "reward_model/nll": float(np.logaddexp(0, -gap).mean()),
    "reward_model/ece": expected_calibration_error(table),
    "reward_model/disagreement": float(gap_QM.std(axis=1).mean()),
  }
  by_domain = {}
  for name in sorted(set(domains)):
    mine = right[np.asarray([d == name for d in domains])]
    by_domain[name] = {"pairs": len(mine), "right": int(mine.sum())}
    metrics[f"reward_model/accuracy/{name}"] = float(mine.mean())
  report = {
    "pairs": len(right),
    "accuracy_interval": [low, high],
    "domains": by_domain,
    "reliability": [
      {"low": b.low, "high": b.high, "count": b.count}
      | ({"confidence": b.confidence, "accuracy": b.accuracy} if b.count else {})
      for b in table
    ],
  }
  return metrics, report


def mean_scores(
  scores_QM: Sequence[np.ndarray], domains_Q: Sequence[int], names: Sequence[str]
) -> dict[str, float]:
  """Of each domain the mean over its answers, chosen and rejected, and over the members."""
  of = np.asarray(domains_Q)
  return {
    name: float(np.mean([s.mean(axis=1)[of == i] for s in scores_QM]))
    for i, name in enumerate(names)
  }


def reward_problem(
  loaded: Loaded,
  train: Sequence[AnnotatedPair],
  heldout: Sequence[AnnotatedPair],
  e: RewardExperiment,
) -> Problem:
  """The problem of a run on given pairs.

  Raises:
    ValueError: held-out pairs of a domain without training pairs.
  """
  names = tuple(sorted({p.domain for p in train})) if e.reward.per_domain else (SHARED,)
  if e.reward.per_domain and (lacking := {p.domain for p in heldout} - set(names)):
    raise ValueError(
      f"domain {min(lacking)!r} has held-out pairs only, so its head cannot be trained; add "
      f"pairs, or set reward.per_domain=False"
    )
  trunk, start = init_reward_model(loaded, e.reward, len(names), e.seed)
  constrain = loaded.layout.constrain
  loss = functools.partial(reward_loss, model=trunk, config=e.reward, constrain=constrain)
  trainer = Trainer(loss, e.optimizer, e.fit.num_steps, adapters.trunk_frozen(start, loaded.lora))
  place = functools.partial(place_pairs, loaded.layout)

  def in_parts(items: Sequence[Ranked]) -> Iterator[tuple[list[Ranked], Packed]]:
    return whole_parts(items, lambda item: item.answers, e.pack, common_prefix)

  def batches(params: Params, items: Sequence[Ranked]) -> tuple[list[RewardBatch], dict]:
    del params
    share = 1 / (len(items) * e.reward.members)
    parts = in_parts(items)
    return [reward_batch(part, packed, e.fit.batch_size, share) for part, packed in parts], {}

  @jax.jit
  def score(params: Params, batch: RewardBatch) -> tuple[jax.Array, jax.Array]:
    hidden = slot_states(trunk, params, batch.rows, constrain)
    of = functools.partial(heads.domain_scores, params["head"])
    return of(hidden[batch.chosen_P], batch.domain_P), of(hidden[batch.rejected_P], batch.domain_P)

  def all_scores(params: Params, items: Sequence[Ranked]) -> tuple[np.ndarray, np.ndarray]:
    """Scores [Q, M] of chosen and rejected answers, in the order of the items."""
    chosen, rejected = [], []
    for start in range(0, len(items), e.fit.batch_size):
      some = items[start : start + e.fit.batch_size]
      for part, packed in in_parts(some):
        batch = place(reward_batch(part, packed, e.fit.batch_size, 1.0))
        good, bad = jax.device_get(score(params, batch))
        chosen.append(good[: len(part)])
        rejected.append(bad[: len(part)])
    return np.concatenate(chosen), np.concatenate(rejected)

  ranked, held = rank(loaded, train, names, e), rank(loaded, heldout, names, e)
  held_domains = [p.domain for p in heldout]

  def measured(params: Params) -> tuple[dict[str, float], dict[str, Any]]:
    if not held:
      return {}, {}
    return pair_metrics(all_scores(params, held), held_domains, e.reward.bins)

  def finish(params: Params, workdir: pathlib.Path) -> str:
    metrics, report = measured(params)
    offsets = mean_scores(all_scores(params, ranked), [r.domain for r in ranked], names)
    model = RewardModel(
      trunk, params, loaded.template, names, offsets, e.model.source, loaded.content_hash
    )
    model.save(workdir / DIRECTORY, {"heldout": metrics, **report})
    return f"reward model: {workdir / DIRECTORY}"

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(adapters.trunk_trainable(start, trunk, loaded.layout, loaded.lora)),
    source=Shuffled(ranked, e.seed),
    batches=batches,
    place=place,
    heldout=lambda params: measured(params)[0],
    identity=trunk.identity()
    | {"start": loaded.content_hash, "heads": names, "members": e.reward.members}
    | adapters.record(loaded.lora),
    finish=finish,
  )


def run(
  e: RewardExperiment, workdir: pathlib.Path, observer: FitObserver, drive: Drive = supervised.run
) -> None:
  """Trains a reward model, or resumes; leaves it in `<workdir>/reward_model`."""
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  observer.on_status("loading the model and the pairs")
  loaded = load_model(e.model, mesh, e.rules)
  record_model(e.model, loaded, workdir)
  train, heldout = read_split(e.data, workdir=workdir)
  observer.on_status(f"{len(train)} comparisons to train on, {len(heldout)} held out")
  problem = reward_problem(loaded, train, heldout, e)
  drive(problem, e.fit, e.checkpoint, workdir, observer)
