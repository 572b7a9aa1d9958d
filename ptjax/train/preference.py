"""Training on preferences: DPO, IPO, KTO, SimPO, ORPO, by the supervised loop."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.algos.preference import PREFERENCE_LOSSES, kto, kto_reference_point
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.masked import fill, masked_sum
from ptjax.core.metrics import Mean, Metric, merge
from ptjax.data.annotated_pairs import AnnotatedPair
from ptjax.data.assistant_mask import Example
from ptjax.data.chat_template import ChatTemplate
from ptjax.experience.packing import PackConfig, Packed, Rows
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rewards.reward_model import answer_tokens
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import adapters, supervised
from ptjax.train.examples import Shuffled
from ptjax.train.experiment import ModelConfig
from ptjax.train.forward import action_logprobs
from ptjax.train.loading import Loaded, check_rows, load_model, record_model
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import Array
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import (
  PairsConfig,
  make_scorer,
  padded,
  place_pairs,
  read_split,
  sequence_index,
  sequence_scores,
  whole_parts,
)
from ptjax.train.supervised import Drive, FitConfig, FitObserver, Problem

# Letters: P pairs of one micro-batch, padded.

# The settings beside beta that each loss takes.
_OWN = {
  "dpo": ("label_smoothing",),
  "ipo": (),
  "kto": ("desirable_weight", "undesirable_weight"),
  "simpo": ("gamma",),
  "orpo": ("lam",),
}
_REFERENCE = ("dpo", "ipo", "kto")  # those that compare with the starting policy
_SUMS = ("dpo", "kto")  # those whose score is a sum over tokens, not a mean


@dataclasses.dataclass(frozen=True)
class PreferenceObjective:
  """What is minimised; the equations stand in `algos.preference`.

  Attributes:
    loss: dpo, ipo, kto, simpo or orpo.
    beta: dpo, ipo, kto: strength of the tie to the reference; simpo: scale of the mean
      log-probs, 2 and more. orpo has none.
    label_smoothing: dpo: probability that a label is wrong.
    gamma: simpo: margin that the chosen answer should have, not scaled by beta.
    lam: orpo: weight of the odds ratio beside the likelihood of the chosen answer.
    desirable_weight, undesirable_weight: kto: weights of the two kinds of answers.
  """

  loss: Literal["dpo", "ipo", "kto", "simpo", "orpo"] = "dpo"
  beta: float | None = None
  label_smoothing: float | None = None
  gamma: float | None = None
  lam: float | None = None
  desirable_weight: float | None = None
  undesirable_weight: float | None = None

  def __post_init__(self):
    allowed = {*_OWN[self.loss], *(() if self.loss == "orpo" else ("beta",))}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name == "loss" or value is None:
        continue
      if field.name not in allowed:
        raise ValueError(
          f"objective.{field.name} {value} does not belong to {self.loss}, which takes "
          f"{', '.join(sorted(allowed))}; set it to None"
        )
      if not value >= 0 or (field.name == "beta" and value == 0):
        raise ValueError(f"objective.{field.name} {value} must be positive")
    if self.label_smoothing is not None and not self.label_smoothing < 0.5:
      raise ValueError(f"objective.label_smoothing {self.label_smoothing} must be under 0.5")

  def settings(self) -> dict[str, float]:
    """Keyword arguments of the loss, defaults filled in."""
    defaults = {
      "dpo": {"beta": 0.1, "label_smoothing": 0.0},
      "ipo": {"beta": 0.1},
      "kto": {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
      "simpo": {"beta": 2.0, "gamma": 1.0},
      "orpo": {"lam": 0.1},
    }[self.loss]
    given = {name: getattr(self, name) for name in defaults}
    return {name: v if given[name] is None else given[name] for name, v in defaults.items()}

  @property
  def needs_reference(self) -> bool:
    return self.loss in _REFERENCE

  @property
  def mean_scores(self) -> bool:
    return self.loss not in _SUMS


@dataclasses.dataclass(frozen=True)
class PreferenceExperiment:
  """A run on preferences; the starting policy is the reference.

  Attributes:
    data: the comparisons.
    name, seed: of the run; the seed decides the order of the pairs.
    objective: what is minimised.
    model, mesh, rules: the policy and where it lives.
    pack: shape of the rows; both answers to a prompt must fit into one micro-batch.
    fit, optimizer, checkpoint: the rest; a batch is of pairs.
  """

  data: PairsConfig
  name: str = "preference"
  seed: int = 0
  objective: PreferenceObjective = PreferenceObjective()
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  pack: PackConfig = PackConfig()
  fit: FitConfig = FitConfig()
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)
  checkpoint: CheckpointConfig = CheckpointConfig()

  def __post_init__(self):
    self.model.refuse_router()


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A pair as tokens, with its scores under the reference.

  Attributes:
    answers: chosen and rejected; None for one that is missing (KTO).
    mismatched: the prompt with an answer to another prompt, for KTO's reference point.
    reference: scores of the answers under the reference; 0 without one.
    mismatched_reference: the same of `mismatched`.
  """

  answers: tuple[Example | None, Example | None]
  mismatched: Example | None = None
  reference: tuple[float, float] = (0.0, 0.0)
  mismatched_reference: float = 0.0

  @property
  def present(self) -> list[Example]:
    return [e for e in self.answers if e is not None]


class PairBatch(NamedTuple):
  """One micro-batch of pairs.

  Attributes:
    rows: packed rows.
    chosen_P, rejected_P: i32, indices into `sequence_scores`; 0 for an answer that is missing.
    chosen_ref_P, rejected_ref_P: f32, scores under the reference.
    chosen_weight_P, rejected_weight_P: f32, share of each answer in the loss of the global
      batch, 0 for a missing one; a loss of pairs reads the first.
    kl: f32[], KTO's reference point.
  """

  rows: Rows
  chosen_P: Array
  rejected_P: Array
  chosen_ref_P: Array
  rejected_ref_P: Array
  chosen_weight_P: Array
  rejected_weight_P: Array
  kl: Array


def preference_loss(
  params: Params,
  batch: PairBatch,
  *,
  model: DecoderConfig,
  objective: PreferenceObjective,
  chunk: int,
  constrain: Constrain,
):
  """sum over pairs (KTO: answers) of weight * loss, and metrics."""
  logp_BA, _ = action_logprobs(
    model, params, batch.rows, SamplingConfig(), chunk=chunk, constrain=constrain
  )
  scores = sequence_scores(logp_BA, batch.rows, mean=objective.mean_scores)
  return loss_of_scores(scores[batch.chosen_P], scores[batch.rejected_P], batch, objective)


def loss_of_scores(
  chosen_P: jax.Array, rejected_P: jax.Array, batch: PairBatch, objective: PreferenceObjective
):
  """The loss from the scores of the answers, and metrics."""
  has_chosen_P, has_rejected_P = batch.chosen_weight_P > 0, batch.rejected_weight_P > 0
  both_P = has_chosen_P & has_rejected_P
  chosen_P, rejected_P = fill(chosen_P, has_chosen_P), fill(rejected_P, has_rejected_P)
  settings = objective.settings()
  if objective.loss == "kto":
    good_P, good = kto(chosen_P, batch.chosen_ref_P, True, batch.kl, **settings)
    bad_P, bad = kto(rejected_P, batch.rejected_ref_P, False, batch.kl, **settings)
    loss = masked_sum(good_P * batch.chosen_weight_P, has_chosen_P)
    loss += masked_sum(bad_P * batch.rejected_weight_P, has_rejected_P)
    correct_P = good["rewards"] > bad["rewards"]
  else:
    scores = (chosen_P, rejected_P)
    if objective.needs_reference:
      scores = (chosen_P, batch.chosen_ref_P, rejected_P, batch.rejected_ref_P)
    losses_P, aux = PREFERENCE_LOSSES[objective.loss](*scores, **settings)
    loss = masked_sum(losses_P * batch.chosen_weight_P, both_P)
    correct_P = aux["correct"]
  margin_P = (chosen_P - batch.chosen_ref_P) - (rejected_P - batch.rejected_ref_P)
  kept = jax.lax.stop_gradient((correct_P.astype(jnp.float32), margin_P, chosen_P, rejected_P))
  metrics = {
    "preference/accuracy": Mean.of(kept[0], both_P),
    "preference/margin": Mean.of(kept[1], both_P),
    "preference/chosen_score": Mean.of(kept[2], has_chosen_P),
    "preference/rejected_score": Mean.of(kept[3], has_rejected_P),
  }
  return loss, metrics


def to_comparisons(
  template: ChatTemplate, pairs: Sequence[AnnotatedPair], objective: PreferenceObjective
) -> list[Comparison]:
  """Tokens of the pairs; for KTO each prompt also with the answer to the next one."""
  out = []
  for i, pair in enumerate(pairs):
    answers = tuple(
      None if text is None else answer_tokens(template, pair.messages, text)
      for text in (pair.chosen, pair.rejected)
    )
    mismatched = None
    if objective.loss == "kto":
      other = next((p for p in (*pairs[i + 1 :], *pairs[:i]) if p.messages != pair.messages), None)
      if other is None:
        raise ValueError("KTO needs answers to two prompts at least; all pairs have one prompt")
      text = other.rejected if other.chosen is None else other.chosen
      mismatched = answer_tokens(template, pair.messages, str(text))
    out.append(Comparison((answers[0], answers[1]), mismatched))
  return out


def with_reference(
  comparisons: Sequence[Comparison], score: Any, reference: Params, *, mean: bool
) -> list[Comparison]:
  """Adds the scores under the reference, which are computed once."""
  parts = [[*c.present, *([c.mismatched] if c.mismatched else [])] for c in comparisons]
  reduce = np.mean if mean else np.sum
  scores = iter(
    float(reduce(x, dtype=np.float64)) for x in score(reference, [e for p in parts for e in p])
  )
  out = []
  for c in comparisons:
    answers = tuple(0.0 if e is None else next(scores) for e in c.answers)
    other = next(scores) if c.mismatched else 0.0
    out.append(
      dataclasses.replace(c, reference=(answers[0], answers[1]), mismatched_reference=other)
    )
  return out


def pair_batch(
  items: Sequence[Comparison], packed: Packed, width: int, share: float, kl: float
) -> PairBatch:
  """One micro-batch; every answer (or pair) has the same share of the loss."""
  places = iter(packed.places)
  index = [
    tuple(0 if e is None else sequence_index(packed.rows, next(places)) for e in item.answers)
    for item in items
  ]

  def column(values, side: int, dtype: Any) -> np.ndarray:
    return padded([v[side] for v in values], width, dtype)

  references = [item.reference for item in items]
  weights = [tuple(0.0 if e is None else share for e in item.answers) for item in items]
  return PairBatch(
    packed.rows,
    column(index, 0, np.int32),
    column(index, 1, np.int32),
    column(references, 0, np.float32),
    column(references, 1, np.float32),
    column(weights, 0, np.float32),
    column(weights, 1, np.float32),
    np.asarray(kl, np.float32),
  )


def preference_problem(
  loaded: Loaded,
  train: Sequence[AnnotatedPair],
  heldout: Sequence[AnnotatedPair],
  e: PreferenceExperiment,
) -> Problem:
  """The problem of a run on given pairs."""
  loss = functools.partial(
    preference_loss,
    model=loaded.model,
    objective=e.objective,
    chunk=e.fit.logit_chunk,
    constrain=loaded.layout.constrain,
  )
  trainer = Trainer(loss, e.optimizer, e.fit.num_steps, adapters.frozen(loaded.start, loaded.lora))
  score = make_scorer(loaded, e.pack, e.fit.logit_chunk)
  measure = jax.jit(loss)

  def prepared(pairs: Sequence[AnnotatedPair]) -> list[Comparison]:
    comparisons = to_comparisons(loaded.template, pairs, e.objective) if pairs else []
    if not e.objective.needs_reference:
      return comparisons
    mean = e.objective.mean_scores
    return with_reference(comparisons, score, loaded.start, mean=mean)

  def reference_point(params: Params, items: Sequence[Comparison]) -> float:
    if e.objective.loss != "kto":
      return 0.0
    scores = score(params, [c.mismatched for c in items if c.mismatched])
    now = np.asarray([x.sum(dtype=np.float64) for x in scores])
    before = np.asarray([c.mismatched_reference for c in items])
    return float(kto_reference_point(now, before, np.ones(len(now), bool)))

  def judged(items: Sequence[Comparison]) -> int:
    """What the loss of a batch is the mean over: pairs, or answers."""
    return sum(len(c.present) for c in items) if e.objective.loss == "kto" else len(items)

  def batches(params: Params, items: Sequence[Comparison]) -> tuple[list[PairBatch], dict]:
    kl = reference_point(params, items)
    share = 1 / judged(items)
    return [
      pair_batch(part, packed, e.fit.batch_size, share, kl)
      for part, packed in whole_parts(items, lambda c: c.present, e.pack)
    ], {}

  held = prepared(heldout)

  def evaluate(params: Params) -> dict[str, Metric]:
    results: list[dict[str, Metric]] = []
    for start in range(0, len(held), e.fit.batch_size):
      some = held[start : start + e.fit.batch_size]
      total = 0.0
      for batch in batches(params, some)[0]:
        share, metrics = measure(params, place_pairs(loaded.layout, batch))
        results.append(metrics)
        total += float(share)
      results.append({"preference/loss": Mean(total * judged(some), judged(some))})
    return merge(*results)

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(loaded.trainable()),
    source=Shuffled(prepared(train), e.seed),
    batches=batches,
    place=functools.partial(place_pairs, loaded.layout),
    heldout=evaluate,
    identity=loaded.model.identity()
    | {"start": loaded.content_hash}
    | adapters.record(loaded.lora),
  )


def run(
  e: PreferenceExperiment,
  workdir: pathlib.Path,
  observer: FitObserver,
  drive: Drive = supervised.run,
) -> None:
  """Trains on preferences, or resumes; see `supervised.run` for what it raises."""
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  observer.on_status("loading the model and the pairs")
  loaded = load_model(e.model, mesh, e.rules)
  record_model(e.model, loaded, workdir)
  train, heldout = read_split(e.data, unpaired=e.objective.loss == "kto", workdir=workdir)
  observer.on_status(
    f"{len(train)} comparisons to train on, {len(heldout)} held out"
    + ("; scoring them under the reference" if e.objective.needs_reference else "")
  )
  problem = preference_problem(loaded, train, heldout, e)
  drive(problem, e.fit, e.checkpoint, workdir, observer)
