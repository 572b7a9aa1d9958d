"""What trains of a loaded model: all of it, or adapters on it."""

import dataclasses
from typing import Any

import jax

from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.lora import LoraConfig, adapter_axes, init_adapters
from ptjax.train.networks import Frozen, Layout


def frozen(start: Params, lora: LoraConfig | None) -> Frozen | None:
  """The frozen part of a network that starts at `start`; None where all of it trains."""
  return None if lora is None else Frozen(start, lora.scale)


def trainable(
  start: Params, model: DecoderConfig, layout: Layout, lora: LoraConfig | None
) -> Params:
  """What trains, at update 0: the weights, or adapters, on buffers of their own."""
  if lora is None:
    return jax.tree.map(jax.numpy.copy, start)
  return layout.place(init_adapters(lora, model), adapter_axes(lora, model))


def trunk_trainable(
  params: Params, trunk: DecoderConfig, layout: Layout, lora: LoraConfig | None
) -> Params:
  """The same of a network {"trunk", "head"}: with adapters, they and the head train."""
  if lora is None:
    return jax.tree.map(jax.numpy.copy, params)
  return {
    "trunk": trainable(params["trunk"], trunk, layout, lora),
    "head": jax.tree.map(jax.numpy.copy, params["head"]),
  }


def trunk_frozen(params: Params, lora: LoraConfig | None) -> Frozen | None:
  """As `frozen`, of a network {"trunk", "head"}."""
  return None if lora is None else Frozen({"trunk": params["trunk"]}, lora.scale)


def record(lora: LoraConfig | None) -> dict[str, Any]:
  """What a checkpoint notes of the adapters; without any, nothing.

  A checkpoint holds adapters only. That the base is the same is told by its hash, which every
  checkpoint notes.
  """
  if lora is None:
    return {}
  return {"lora": dataclasses.asdict(lora) | {"targets": list(lora.targets)}}  # as JSON has it
