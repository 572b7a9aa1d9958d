"""Weights from their files into arrays that are sharded over a mesh, one tensor at a time.

A stack of layers is allocated on the devices and filled there, so that no host ever holds one;
of each tensor a process cuts, from the mapped file, the parts that its own devices hold.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ptjax.models import weight_map
from ptjax.models.config import DecoderConfig


def place_tensors(
  config: DecoderConfig,
  tensors: Iterable[tuple[str, np.ndarray]],
  shardings: dict[str, Any],
  dtype: np.typing.DTypeLike,
) -> dict[str, Any]:
  """The parameter tree on the devices, from (Hugging Face name, array) pairs, checked beforehand.

  Args:
    config: the shapes.
    tensors: in any order; each process must give its own devices the same tensors.
    shardings: a `NamedSharding` for each leaf of the tree.
    dtype: of every leaf; cast on the host, as `importer.assemble` does.
  """
  slots: dict[str, list[weight_map.Slot]] = {}
  for name, slot in weight_map.slots(config):
    slots.setdefault(name, []).append(slot)
  leaves: dict[tuple[str, ...], jax.Array] = {}
  fillers: dict[tuple[str, ...], Callable] = {}
  for name, weight in tensors:
    for slot in slots.get(name, ()):
      sharding: Any = functools.reduce(lambda node, key: node[key], slot.path, shardings)
      piece = _piece(slot.view(weight), sharding, len(slot.lead), dtype)
      if not slot.lead:
        leaves[slot.path] = piece
        continue
      if slot.path not in leaves:
        leaves[slot.path] = jnp.zeros(slot.lead + slot.shape, np.dtype(dtype), device=sharding)
        fillers[slot.path] = jax.jit(_fill, donate_argnums=0, out_shardings=sharding)
      leaves[slot.path] = fillers[slot.path](leaves[slot.path], piece, slot.index)
      # The queue of an asynchronous device would hold the pieces of all layers.
      jax.block_until_ready(leaves[slot.path])
  return _nested(leaves)


def _piece(
  view: np.ndarray, sharding: NamedSharding, lead: int, dtype: np.typing.DTypeLike
) -> jax.Array:
  """One tensor on the devices, split as the stack is along the axes that it has."""
  parts: dict[Any, np.ndarray] = {}

  def part(index) -> np.ndarray:
    key = tuple((cut.start, cut.stop) for cut in index)  # slices hash from Python 3.12 on
    if key not in parts:  # devices with the same part share it
      parts[key] = np.array(view[index], dtype, order="C")
    return parts[key]

  spec = PartitionSpec(*sharding.spec[lead:])
  return jax.make_array_from_callback(view.shape, NamedSharding(sharding.mesh, spec), part)


def _fill(stack: jax.Array, piece: jax.Array, index: tuple[int, ...]) -> jax.Array:
  start = (*index, *(0 for _ in piece.shape))
  return jax.lax.dynamic_update_slice(stack, piece[(None,) * len(index)], start)


def _nested(leaves: dict[tuple[str, ...], jax.Array]) -> dict[str, Any]:
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    node = tree
    for key in path[:-1]:
      node = node.setdefault(key, {})
    node[path[-1]] = leaf
  return tree
