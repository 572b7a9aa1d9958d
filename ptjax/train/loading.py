"""A pretrained model on the mesh: what every kind of training starts from."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.provenance import write_manifest
from ptjax.data.tokenizer import load_tokenizer
from ptjax.experience.packing import PackConfig
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.importer import load_sharded
from ptjax.sharding.rules import Rules
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
  """

  model: DecoderConfig
  content_hash: str
  template: ChatTemplate
  layout: Layout
  start: Params


def load_model(config: ModelConfig, mesh: Mesh, rules: Rules) -> Loaded:
  """Reads the weights and places them.

  Raises:
    ValueError: weights that cannot be read, shapes that do not fit the mesh, no chat template.
  """
  pretrained = load_sharded(config.source, mesh, rules, jnp.dtype(config.param_dtype))
  model = dataclasses.replace(
    pretrained.config,
    matmul_dtype=config.matmul_dtype,
    activation_dtype=config.activation_dtype,
    remat=config.remat,
    merge_rows=jax.default_backend() == "cpu" and mesh.shape["context"] == 1,
    ff_parts=1 if any(mesh.shape[a] > 1 for a in rules.ff) else pretrained.config.ff_parts,
  )
  template = ChatTemplate(load_tokenizer(pretrained.tokenizer_source))
  layout = Layout(mesh, rules)
  return Loaded(model, pretrained.content_hash, template, layout, pretrained.params)


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
