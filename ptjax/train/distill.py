"""On-policy distillation: the student answers, the teacher corrects every token of the answers.

loss = mean over the student's own tokens of KL between the next-token distributions. The states
are samples and carry no gradient (Agarwal et al. 2024, GKD, with lambda = 1).

Letters: E width of the teacher. C slots of one chunk.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ptjax.algos.aggregate import weighted_sum
from ptjax.algos.distillation import DIVERGENCES, Divergence
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.masked import fill
from ptjax.core.metrics import Mean
from ptjax.data.tokenizer import Tokenizer
from ptjax.experience.packing import PackConfig, Rows
from ptjax.models import heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train import adapters, supervised
from ptjax.train.experiment import ModelConfig
from ptjax.train.forward import action_states
from ptjax.train.loading import Loaded, load_model
from ptjax.train.networks import Trainer
from ptjax.train.objectives import Array
from ptjax.train.on_policy import (
  NumberedTask,
  RolloutConfig,
  Tasks,
  heldout_pass_rates,
  play,
  played_metrics,
  sampling_session,
)
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.session import Session
from ptjax.train.sft import Aggregation, SFTBatch, sft_batches
from ptjax.train.supervised import Drive, FitConfig, FitObserver, Problem


@dataclasses.dataclass(frozen=True)
class DistillExperiment:
  """A run of on-policy distillation.

  Attributes:
    teacher: the model to learn from; it must have the student's tokenizer.
    name, seed: of the run; the seed decides tasks and sampling.
    divergence: reverse_kl, KL(student || teacher), or forward_kl, KL(teacher || student).
    rollout: the tasks on which the student answers.
    aggregation: see `SFTExperiment`.
    model, mesh, rules: the student, and where both live.
    pack: shape of the rows.
    fit, optimizer, checkpoint: the rest; a batch is of tasks.
  """

  teacher: ModelConfig
  name: str = "distill"
  seed: int = 0
  divergence: Divergence = "reverse_kl"
  rollout: RolloutConfig = RolloutConfig(group_size=1)
  aggregation: Aggregation = "token_mean"
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  pack: PackConfig = PackConfig()
  fit: FitConfig = FitConfig()
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  checkpoint: CheckpointConfig = CheckpointConfig()

  def __post_init__(self):
    self.model.refuse_router()


class DistillBatch(NamedTuple):
  """One micro-batch.

  Attributes:
    rows, weights_BA: see `SFTBatch`.
    teacher_BAE: the teacher's state before each action.
    teacher: the parameters that make its logits from that.
  """

  rows: Rows
  weights_BA: Array
  teacher_BAE: jax.Array
  teacher: Params


def distill_loss(
  params: Params,
  batch: DistillBatch,
  *,
  student: DecoderConfig,
  teacher: DecoderConfig,
  divergence: Divergence,
  chunk: int,
  constrain: Constrain,
):
  """sum over actions of weight * KL, and the mean KL per token, in nats, as metric.

  The logits of both exist for `chunk` slots of a row at a time.
  """
  hidden_BAD = action_states(student, params, batch.rows, constrain)

  def some(hidden_BCD: jax.Array, teacher_BCE: jax.Array) -> jax.Array:
    mine = heads.logits(params, hidden_BCD.reshape(-1, student.d_model), student)
    theirs = heads.logits(batch.teacher, teacher_BCE.reshape(-1, teacher.d_model), teacher)
    return DIVERGENCES[divergence](mine, theirs).reshape(hidden_BCD.shape[:2])

  cuts = range(0, hidden_BAD.shape[1], chunk)
  if len(cuts) > 1:
    some = jax.checkpoint(some)
  parts = [some(hidden_BAD[:, i : i + chunk], batch.teacher_BAE[:, i : i + chunk]) for i in cuts]
  mask_BA = batch.rows.mask_BA
  kl_BA = fill(jnp.concatenate(parts, axis=1), mask_BA)
  loss = weighted_sum(kl_BA, batch.weights_BA, mask_BA)
  return loss, {f"distill/{divergence}": Mean.of(jax.lax.stop_gradient(kl_BA), mask_BA)}


def same_tokens(a: Tokenizer, b: Tokenizer) -> bool:
  """Whether every id stands for the same bytes in both; how text is cut does not matter here."""
  same = a.vocab_size == b.vocab_size and a.special_tokens == b.special_tokens
  return same and all(a.token_bytes(i) == b.token_bytes(i) for i in range(a.vocab_size))


def distill_problem(session: Session, teacher: Loaded, e: DistillExperiment) -> Problem:
  """The problem of a run in an open session.

  Raises:
    ValueError: the teacher has another tokenizer or vocabulary.
  """
  if session.model.vocab_size != teacher.model.vocab_size or not same_tokens(
    session.template.tokenizer, teacher.template.tokenizer
  ):
    raise ValueError(
      f"teacher {e.teacher.source!r} has other tokens than the student (vocabularies of "
      f"{teacher.model.vocab_size} and {session.model.vocab_size}), so their distributions cannot "
      f"be compared; use a teacher of the same family"
    )
  layout = session.policy_layout
  loss = functools.partial(
    distill_loss,
    student=session.model,
    teacher=teacher.model,
    divergence=e.divergence,
    chunk=e.fit.logit_chunk,
    constrain=layout.constrain,
  )
  trainer = Trainer(
    loss, e.optimizer, e.fit.num_steps, adapters.frozen(session.start, e.model.lora)
  )
  head = {k: v for k, v in teacher.start.items() if k in ("embed", "lm_head")}

  @jax.jit
  def teacher_states(params: Params, rows: Rows) -> jax.Array:
    return action_states(teacher.model, params, rows, layout.constrain)

  def batches(params: Params, tasks: Sequence[NumberedTask]) -> tuple[list[SFTBatch], dict]:
    played = play(session, params, tasks, e.rollout.group_size)
    # The teacher corrects every answer, also one without a score.
    answers = [p.trajectory(e.seed) for p in played]
    return sft_batches(answers, e.aggregation, e.pack), played_metrics(played)

  def place(batch: SFTBatch) -> DistillBatch:
    rows, weights_BA = layout.place_rows(batch)
    return DistillBatch(rows, weights_BA, teacher_states(teacher.start, rows), head)

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(session.trainable()),
    source=Tasks(e.rollout.domains, session.domains, e.seed),
    batches=batches,
    place=place,
    heldout=lambda params: heldout_pass_rates(session, params),
    identity=session.model.identity()
    | {"start": session.model_hash, "teacher": teacher.content_hash}
    | adapters.record(e.model.lora),
  )


def run(
  e: DistillExperiment, workdir: pathlib.Path, observer: FitObserver, drive: Drive = supervised.run
) -> None:
  """Distils, or resumes; see `supervised.run` for what it raises."""
  observer.on_status("loading student and teacher, and starting the sandboxes")
  with sampling_session(e, workdir) as session:
    teacher = load_model(e.teacher, session.policy_layout.mesh, e.rules)
    problem = distill_problem(session, teacher, e)
    drive(problem, e.fit, e.checkpoint, workdir, observer)
