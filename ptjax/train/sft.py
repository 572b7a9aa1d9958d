"""Supervised fine-tuning: the negative log-likelihood of the assistant's tokens."""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax

from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.masked import fill
from ptjax.core.metrics import Mean, Metric, merge
from ptjax.data.assistant_mask import Example
from ptjax.data.config import DataConfig, encoder, open_data
from ptjax.data.conversations import Encode, conversation_of
from ptjax.data.sources import RandomAccess, Record, open_files
from ptjax.experience.packing import Packable, PackConfig, Rows, pack
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.models.lora import LoraConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import adapters, supervised
from ptjax.train.batch import micro_batches
from ptjax.train.examples import Source, is_heldout, prompt_key
from ptjax.train.experiment import ModelConfig
from ptjax.train.forward import action_logprobs, routed_logprobs
from ptjax.train.loading import Loaded, check_rows, load_model, record_model
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import Array
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.router import Load, RouterConfig, RouterTraining, with_router
from ptjax.train.supervised import Drive, FitConfig, FitObserver, Problem

if TYPE_CHECKING:
  from ptjax.train.best_of_n import BestOfNExperiment

Aggregation = Literal["token_mean", "seq_mean_token_mean"]


@dataclasses.dataclass(frozen=True)
class HeldoutConfig:
  """What is measured and never trained on.

  Attributes:
    share: of the prompts, chosen by their hash.
    examples: measured at most.
  """

  share: float = 0.1
  examples: int = 256

  def __post_init__(self):
    if not 0 <= self.share < 1:
      raise ValueError(f"heldout.share {self.share} must be in [0, 1)")


@dataclasses.dataclass(frozen=True)
class SFTExperiment:
  """A run of supervised fine-tuning.

  Attributes:
    name: of the run.
    seed: decides the order of the examples.
    data: the conversations: sources with licence, origin and hash.
    heldout: what is measured and never trained on.
    aggregation: token_mean weighs every trained token of a batch alike, seq_mean_token_mean
      every conversation.
    model, mesh, rules: the network and where it lives.
    pack: shape of the rows.
    fit, optimizer, checkpoint: the rest.
  """

  data: DataConfig
  heldout: HeldoutConfig = HeldoutConfig()
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
  logp_BA, _ = action_logprobs(
    model, params, batch.rows, SamplingConfig(), chunk=chunk, constrain=constrain
  )
  return _likelihood(logp_BA, batch)


def _likelihood(logp_BA: jax.Array, batch: SFTBatch):
  mask_BA = batch.rows.mask_BA
  nll_BA = -fill(logp_BA, mask_BA)
  loss = weighted_sum(nll_BA, batch.weights_BA, mask_BA)
  return loss, {"sft/nll": Mean.of(jax.lax.stop_gradient(nll_BA), mask_BA)}


def routed_sft_loss(
  params: Params,
  batch: SFTBatch,
  whole: Load,
  *,
  model: DecoderConfig,
  chunk: int,
  constrain: Constrain,
  router: RouterConfig,
):
  """`sft_loss` and the auxiliary losses of the routers; `whole` is of the global batch."""
  logp_BA, _, routed = routed_logprobs(
    model, params, batch.rows, SamplingConfig(), chunk=chunk, constrain=constrain
  )
  return with_router(*_likelihood(logp_BA, batch), routed, batch.rows, whole, router)


def sft_trainer(
  model: DecoderConfig,
  layout: Layout,
  start: Params,
  lora: LoraConfig | None,
  e: "SFTExperiment | BestOfNExperiment",
) -> Trainer:
  """Trains on the likelihood, and the routers where `e.model.router` says so."""
  frozen, config, num_updates = adapters.frozen(start, lora), e.model.router, e.fit.num_steps
  common = {"model": model, "chunk": e.fit.logit_chunk, "constrain": layout.constrain}
  if config is None:
    return Trainer(functools.partial(sft_loss, **common), e.optimizer, num_updates, frozen)
  router = RouterTraining.of(config, model, layout.constrain, adapters=frozen is not None)
  loss = functools.partial(routed_sft_loss, **common, router=config)
  return Trainer(loss, e.optimizer, num_updates, frozen, router)


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


@dataclasses.dataclass(frozen=True)
class OneSide:
  """Encodes the training records, or the held-out ones; the others become None."""

  encode: Encode
  share: float
  heldout: bool

  def __call__(self, record: Record) -> Example | None:
    if is_heldout(record_key(record), self.share) != self.heldout:
      return None
    return self.encode(record)


def record_key(record: Record) -> str:
  """What `is_heldout` takes of a record: the conversation before the first answer."""
  if isinstance(record.get("targets"), list):
    return json.dumps(record.get("inputs", []))
  return prompt_key(conversation_of(record)[0])


def read_heldout(config: DataConfig, side: OneSide, most: int) -> list[Example]:
  """The first held-out examples of the sources, in the order of the files."""
  records = (r for s in config.sources for r in _records(open_files(s.files)))
  examples = (side(record) for record in records)
  return list(itertools.islice((e for e in examples if e is not None), most))


def _records(source: RandomAccess) -> Iterator[Record]:
  return (source[i] for i in range(len(source)))


def sft_problem(
  loaded: Loaded,
  train: Source[Example],
  heldout: Sequence[Example],
  e: SFTExperiment,
) -> Problem:
  """The problem of a run on a source of examples."""
  loss = functools.partial(
    sft_loss, model=loaded.model, chunk=e.fit.logit_chunk, constrain=loaded.layout.constrain
  )
  trainer = sft_trainer(loaded.model, loaded.layout, loaded.start, loaded.lora, e)
  measure = jax.jit(lambda params, batch: loss(params, batch)[1])

  def batches(params: Params, examples: Sequence[Example]) -> tuple[list[SFTBatch], dict]:
    del params
    return sft_batches(examples, e.aggregation, e.pack) if examples else [], {}

  def evaluate(params: Params) -> dict[str, Metric]:
    if not heldout:
      return {}
    parts = sft_batches(heldout, "token_mean", e.pack)
    return merge(*(measure(params, loaded.layout.place_rows(part)) for part in parts))

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(loaded.trainable()),
    source=train,
    batches=batches,
    place=loaded.layout.place_rows,
    heldout=evaluate,
    identity=loaded.model.identity()
    | {"start": loaded.content_hash}
    | adapters.record(loaded.lora),
  )


def run(
  e: SFTExperiment, workdir: pathlib.Path, observer: FitObserver, drive: Drive = supervised.run
) -> None:
  """Fine-tunes, or resumes; see `supervised.run` for what it raises."""
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  observer.on_status("checking the data, loading the model")
  data = open_data(e.data, workdir, e.seed)
  loaded = load_model(e.model, mesh, e.rules)
  record_model(e.model, loaded, workdir)
  encode = encoder(e.data, loaded.template)
  train = data.stream(OneSide(encode, e.heldout.share, heldout=False))
  heldout = read_heldout(e.data, OneSide(encode, e.heldout.share, heldout=True), e.heldout.examples)
  observer.on_status(f"{len(heldout)} conversations held out")
  problem = sft_problem(loaded, train, heldout, e)
  drive(problem, e.fit, e.checkpoint, workdir, observer)
