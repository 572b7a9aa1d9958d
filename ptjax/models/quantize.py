"""Weights in 8 bits, one scale for each output channel; activations stay as they are."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params, logical_axes
from ptjax.models.matrices import Quantized, input_axes, map_matrices

Kind = Literal["int8", "fp8"]
_TYPES = {"int8": (np.dtype(np.int8), 127.0), "fp8": (np.dtype(ml_dtypes.float8_e4m3fn), 448.0)}


def quantize(w: Any, num_inputs: int, num_outputs: int, kind: Kind) -> Quantized:
  """A matrix as values of 8 bits times max|w| / max|value| of each output channel.

  int8 rounds to the nearest of 255 equal steps, so that no weight is off by more than half a
  scale; fp8 (e4m3) keeps 3 bits of mantissa, so none by more than 1/16 of itself, or 2^-10 scale.

  Args:
    w: [..., *I, *O], on the device or on the host; the result is where `w` is.
    num_inputs, num_outputs: axes of I and O.
    kind: int8 or fp8.
  """
  xp = jnp if isinstance(w, jax.Array) else np
  dtype, largest = _TYPES[kind]
  axes = tuple(range(w.ndim - num_inputs - num_outputs, w.ndim - num_outputs))
  wide = w.astype(np.float32)
  peak = xp.max(xp.abs(wide), axis=axes, keepdims=True)
  scale = xp.where(peak > 0, peak, 1) / np.float32(largest)
  steps = wide / scale
  # Division may round beyond the last value, which fp8 would make nan.
  steps = xp.clip(xp.rint(steps) if kind == "int8" else steps, -largest, largest)
  return Quantized(steps.astype(dtype), scale.astype(np.float32))


def _output_axes(path: str, ndim: int, lead: int) -> int:
  inputs = input_axes(path)
  assert inputs is not None
  return ndim - lead - inputs


def _in_blocks(path: str) -> bool:
  """Whether a matrix is a block's. The head keeps its precision, as the table does."""
  return not path.startswith("lm_head")


def _lead(path: str) -> int:
  return 2 if path.rpartition("/")[2].startswith("e_") else 1


def quantize_blocks(params: Mapping[str, Any], kind: Kind) -> Params:
  """The matrices of all blocks quantised; tables, head, routers, norms and biases as they are."""

  def one(path: str, w: Any) -> Any:
    if not _in_blocks(path):
      return w
    return quantize(w, input_axes(path) or 1, _output_axes(path, w.ndim, _lead(path)), kind)

  return map_matrices(one, params)


def quantize_layer(layer: Mapping[str, Any], kind: Kind) -> Params:
  """As `quantize_blocks`, of the parameters of one layer, cut from its stack."""

  def one(path: str, w: Any) -> Any:
    return quantize(w, input_axes(path) or 1, _output_axes(path, w.ndim, _lead(path) - 1), kind)

  return map_matrices(one, layer)


def quantized_axes(model: DecoderConfig) -> Params:
  """Logical axes of `quantize_blocks`: values as the matrix; scales on every device along I."""

  def one(path: str, axes: Any) -> Any:
    if not _in_blocks(path):
      return axes
    inputs, lead = input_axes(path) or 1, _lead(path)
    return Quantized(axes, (*axes[:lead], *(None,) * inputs, *axes[lead + inputs :]))

  return map_matrices(one, logical_axes(model))
