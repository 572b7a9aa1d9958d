"""Supervised fine-tuning: the negative log-likelihood of the assistant's tokens."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import jax

from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.masked import fill
from ptjax.core.metrics import Mean, Metric, merge
from ptjax.data.annotated_pairs import check_messages, jsonl_records
from ptjax.data.chat_template import ChatTemplate
from ptjax.experience.packing import Packable, PackConfig, Rows, pack
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import supervised
from ptjax.train.batch import micro_batches
from ptjax.train.examples import (
  Example,
  Shuffled,
  conversation_example,
  is_heldout,
  prompt_key,
)
from ptjax.train.experiment import ModelConfig
from ptjax.train.forward import action_logprobs
from ptjax.train.loading import Loaded, check_rows, load_model
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import Array
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.supervised import FitConfig, FitObserver, Problem

Aggregation = Literal["token_mean", "seq_mean_token_mean"]


@dataclasses.dataclass(frozen=True)
class ConversationsConfig:
  """Conversations to learn from.

  Attributes:
    path: JSONL, one `{"messages": [{"role", "content"}, ...]}` a line.
    heldout: share of the prompts that is measured and never trained on.
  """

  path: str
  heldout: float = 0.1

  def __post_init__(self):
    if not 0 <= self.heldout < 1:
      raise ValueError(f"data.heldout {self.heldout} must be in [0, 1)")


@dataclasses.dataclass(frozen=True)
class SFTExperiment:
  """A run of supervised fine-tuning.

  Attributes:
    name: of the run.
    seed: decides the order of the examples.
    data: the conversations.
    aggregation: token_mean weighs every trained token of a batch alike, seq_mean_token_mean
      every conversation.
    model, mesh, rules: the network and where it lives.
    pack: shape of the rows.
    fit, optimizer, checkpoint: the rest.
  """

  data: ConversationsConfig
  name: str = "sft"
  seed: int = 0
  aggregation: Aggregation = "token_mean"
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  pack: PackConfig = PackConfig()
  fit: FitConfig = FitConfig()
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  checkpoint: CheckpointConfig = CheckpointConfig()


class SFTBatch(NamedTuple):
  """Packed rows, and the share of each action in the loss of the global batch."""

  rows: Rows
  weights_BA: Array


def sft_loss(
  params: Params,
  batch: SFTBatch,
  *,
  model: DecoderConfig,
  chunk: int,
  constrain: Constrain,
):
  """-sum over actions of weight * log p(action), and the mean per token as metric.

  With token_mean weights the sum is the negative log-likelihood over all assistant tokens of the
  global batch divided by their number, however it is packed, cut or sharded.
  """
  mask_BA = batch.rows.mask_BA
  logp_BA, _ = action_logprobs(
    model, params, batch.rows, SamplingConfig(), chunk=chunk, constrain=constrain
  )
  nll_BA = -fill(logp_BA, mask_BA)
  loss = weighted_sum(nll_BA, batch.weights_BA, mask_BA)
  return loss, {"sft/nll": Mean.of(jax.lax.stop_gradient(nll_BA), mask_BA)}


def sft_batches(
  examples: Sequence[Packable], aggregation: str, packing: PackConfig
) -> list[SFTBatch]:
  """Micro-batches of one update."""
  # Packing stores the prompt of a group once; here every example is a group of its own.
  apart = [Example(e.tokens, e.action_mask, group=i) for i, e in enumerate(examples)]
  packed = pack(apart, packing)
  weights = token_weights(aggregation, [e.num_actions for e in apart])
  whole = SFTBatch(packed.rows, packed.spread(list(weights)))
  return list(micro_batches(whole, packing.rows))


def read_conversations(
  config: ConversationsConfig, template: ChatTemplate
) -> tuple[list[Example], list[Example]]:
  """(training, held-out) examples of a JSONL file.

  The seam to the data pipelines: whatever else gives examples can stand in for it.

  Raises:
    ValueError: a line that is no conversation; the message names it.
  """
  train, heldout = [], []
  for number, record in jsonl_records(config.path):
    where = f"{config.path}, line {number}"
    messages = check_messages(record.get("messages"), f"{where}, messages")
    try:
      example = conversation_example(template, messages)
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from error
    (heldout if is_heldout(prompt_key(messages), config.heldout) else train).append(example)
  return train, heldout


def sft_problem(
  loaded: Loaded,
  train: Sequence[Example],
  heldout: Sequence[Example],
  e: SFTExperiment,
) -> Problem:
  """The problem of a run on given examples."""
  loss = functools.partial(
    sft_loss, model=loaded.model, chunk=e.fit.logit_chunk, constrain=loaded.layout.constrain
  )
  trainer = Trainer(loss, e.optimizer, e.fit.num_steps)
  measure = jax.jit(lambda params, batch: loss(params, batch)[1])

  def batches(params: Params, examples: Sequence[Example]) -> Iterator[SFTBatch]:
    del params
    yield from sft_batches(examples, e.aggregation, e.pack)

  def evaluate(params: Params) -> dict[str, Metric]:
    if not heldout:
      return {}
    parts = sft_batches(heldout, "token_mean", e.pack)
    return merge(*(measure(params, loaded.layout.place_rows(part)) for part in parts))

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(jax.tree.map(jax.numpy.copy, loaded.start)),
    source=Shuffled(train, e.seed),
    batches=batches,
    place=loaded.layout.place_rows,
    heldout=evaluate,
    identity=loaded.model.identity() | {"start": loaded.content_hash},
  )


def run(e: SFTExperiment, workdir: pathlib.Path, observer: FitObserver) -> None:
  """Fine-tunes, or resumes; see `supervised.run` for what it raises."""
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  observer.on_status("loading the model and the conversations")
  loaded = load_model(e.model, mesh, e.rules)
  train, heldout = read_conversations(e.data, loaded.template)
  observer.on_status(f"{len(train)} conversations to train on, {len(heldout)} held out")
  problem = sft_problem(loaded, train, heldout, e)
  supervised.run(problem, e.fit, e.checkpoint, workdir, observer)
