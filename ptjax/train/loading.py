"""A pretrained model on the mesh: what every kind of training starts from."""

import dataclasses
import datetime
import pathlib
from typing import Literal

import jax.numpy as jnp
from jax.sharding import Mesh

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.provenance import write_manifest
from ptjax.data.tokenizer import load_tokenizer
from ptjax.experience.packing import PackConfig
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.importer import load_pretrained, load_sharded
from ptjax.models.lora import LoraConfig
from ptjax.models.quantize import quantize_blocks, quantized_axes
from ptjax.sharding.mesh import on_cpu
from ptjax.sharding.rules import Rules
from ptjax.train import adapters
from ptjax.train.experiment import ModelConfig
from ptjax.train.networks import Layout


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model, its tokenizer, and its weights where the rules put them.

  Attributes:
    model: the shape, and how to compute with it here.
    content_hash: sha256 of the weights' files.
    template: tokenizer and chat template.
    layout: where the weights live.
    start: the weights; they are shared, so copy them before an optimiser takes them over.
    lora: the adapters that train instead of them; None trains them all.
  """

  model: DecoderConfig
  content_hash: str
  template: ChatTemplate
  layout: Layout
  start: Params
  lora: LoraConfig | None = None

  def trainable(self) -> Params:
    """What trains, at update 0, on buffers of its own: the weights, or adapters on them."""
    return adapters.trainable(self.start, self.model, self.layout, self.lora)


def load_model(config: ModelConfig, mesh: Mesh, rules: Rules) -> Loaded:
  """Reads the weights and places them.

  Raises:
    ValueError: weights that cannot be read, shapes that do not fit the mesh, no chat template.
  """
  dtype, quantised = jnp.dtype(config.param_dtype), _quantised(config.lora)
  if quantised:  # from the host, where the weights are made smaller
    pretrained = load_pretrained(config.source, dtype)
  else:
    pretrained = load_sharded(config.source, mesh, rules, dtype)
  model = computed_on(pretrained.config, config, mesh, rules)
  today = datetime.datetime.fromisoformat(config.today) if config.today else None
  template = ChatTemplate(load_tokenizer(pretrained.tokenizer_source), today)
  layout = Layout(mesh, rules)
  start = pretrained.params
  if quantised:
    start = layout.place(quantize_blocks(start, quantised), quantized_axes(model))
  return Loaded(model, pretrained.content_hash, template, layout, start, config.lora)


def _quantised(lora: LoraConfig | None) -> Literal["int8", "fp8"] | None:
  """The type that a base of adapters is quantised to."""
  return None if lora is None or lora.base == "float32" else lora.base


def computed_on(
  shape: DecoderConfig, config: ModelConfig, mesh: Mesh, rules: Rules
) -> DecoderConfig:
  """The model of that shape as the configuration and the devices of the mesh compute it."""
  return dataclasses.replace(
    shape,
    matmul_dtype=config.matmul_dtype,
    activation_dtype=config.activation_dtype,
    remat=config.remat,
    ff_chunk=config.ff_chunk,
    attention=config.attention,
    context_attention=config.context_attention,
    context_layout=config.context_layout,
    context_transfer=config.context_transfer,
    capacity_factor=config.capacity_factor,
    pattern=config.pattern,
    merge_rows=on_cpu(mesh) and mesh.shape["context"] == 1,
    ff_parts=1 if any(mesh.shape[a] > 1 for a in rules.ff) else shape.ff_parts,
  )


def record_model(config: ModelConfig, loaded: Loaded, workdir: pathlib.Path) -> None:
  """Writes the section "model" of the workdir's manifest."""
  record = {
    "source": config.source,
    "weights_sha256": loaded.content_hash,
    "tokenizer_sha256": loaded.template.tokenizer.content_hash,
  }
  write_manifest(workdir, "model", record)


def check_rows(pack: PackConfig, layout: Layout) -> None:
  """Raises ValueError where the rows of a micro-batch do not divide over the batch axes."""
  try:
    layout.rules.sharding(layout.mesh, ("batch",), (pack.rows,))
  except ValueError as error:
    raise ValueError(f"pack.rows {pack.rows}: {error}") from error
