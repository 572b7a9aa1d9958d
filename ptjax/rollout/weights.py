"""The trainer's parameters in the form that the decode loop reads fastest."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.layers import out_first
from ptjax.models.matrices import dense, densify, input_axes, map_matrices
from ptjax.models.quantize import Kind, quantize_layer


class EngineWeights(NamedTuple):
  """One version of the policy, for prefill and for decoding.

  Attributes:
    params: the trainer's arrays themselves (shared, not copied), adapters beside their base.
    decode: embedding, final norm and head, for the configuration that decodes.
    layers: the block parameters cut into one tree a layer: a slice of the stacked
      arrays inside the decode loop would be copied at every token. Adapters are merged here.
  """

  params: Params
  decode: Params
  layers: tuple[Params, ...]


def decode_config(model: DecoderConfig, *, on_cpu: bool) -> DecoderConfig:
  """How the model computes one token a row, on a CPU or elsewhere.

  The pieces of `ff_parts` would be copied out of the weights at every token. They matter at
  the first position of a sequence, which prefill computes for all prompts of two tokens or more.
  """
  return dataclasses.replace(model, ff_parts=1, capacity_factor=None, out_first=on_cpu)


@functools.partial(jax.jit, static_argnums=(0, 2))
def turned(
  model: DecoderConfig, params: Params, quantized: Kind | None = None
) -> tuple[Params, tuple[Params, ...]]:
  """(head, layers) of `EngineWeights`: copies, turned where the model asks for it, quantised where
  `quantized` does, adapters merged."""
  cut = tuple(
    densify(jax.tree.map(lambda x, i=i: x[i], params[stack]))
    for stack, num_layers in model.stacks.items()
    for i in range(num_layers)
  )
  rest = densify({name: part for name, part in params.items() if name == "lm_head"})
  if quantized is not None:
    cut = tuple(quantize_layer(layer, quantized) for layer in cut)
  if not model.out_first:
    return rest, cut

  def turn(path: str, w: Any) -> Any:
    is_expert = path.rpartition("/")[2].startswith("e_")  # read by the grouped products
    return w if is_expert else out_first(w, input_axes(path) or 1)

  return map_matrices(turn, rest), tuple(map_matrices(turn, layer) for layer in cut)


def engine_weights(
  params: Params, model: DecoderConfig, quantized: Kind | None = None
) -> EngineWeights:
  """Prepares `params` for the engine; call once for each new version of the policy.

  Args:
    params: of the trainer.
    model: the configuration that decodes.
    quantized: the layers' matrices in 8 bits; None keeps their precision.
  """
  return assemble(params, *turned(model, params, quantized))


def assemble(params: Params, head: Params, layers: tuple[Params, ...]) -> EngineWeights:
  """The weights from the trainer's own and the two results of `turned`."""
  shared = {name: params[name] for name in ("embed", "final_norm")}
  return EngineWeights(params, shared | head, layers)


@functools.partial(jax.jit, static_argnums=1)
def rounded(params: Params, bits: int) -> Params:
  """The parameters with their matrices at `bits` bits a weight.

  w is replaced by s round(w / s), s being the largest |w| of a layer's output channel divided by
  2^(bits - 1) - 1: symmetric rounding to nearest, a scale for each channel. Embeddings, norms,
  biases and experts stay as they are.
  """
  levels = 2 ** (bits - 1) - 1

  def one(path: str, w: Any) -> Any:
    if path.rpartition("/")[2].startswith("e_"):
      return w
    whole = dense(w)
    first = 0 if path.startswith("lm_head") else 1  # axis 0 of the others is the layer
    inputs = tuple(range(first, first + (input_axes(path) or 1)))
    scale = jnp.max(jnp.abs(whole), axis=inputs, keepdims=True) / levels
    return jnp.round(whole / jnp.where(scale > 0, scale, 1)) * scale

  return map_matrices(one, params)
