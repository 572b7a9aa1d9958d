"""What is on a device while each program runs, by what it is for."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from ptjax.planning.compiler import Compiled
from ptjax.planning.liveness import Buffer
from ptjax.planning.programs import Program
from ptjax.planning.setup import Setup

SAVED, ACTIVATIONS = "activations saved for the backward pass", "other activations"
LOGITS, COLLECTIVES = "logits", "collective buffers"
COPIES, RESULTS, REST = "weights, cast or gathered", "gradients and results", "padding and rest"


def device_bytes(tree: Any) -> int:
  """Bytes on one device of arrays given as shapes with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
    if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
  )


@dataclasses.dataclass(frozen=True)
class Live:
  """All that is on a device while a program runs.

  Attributes:
    name: of the program.
    parts: bytes by what they are for; they add up to `total`.
    total: bytes.
  """

  name: str
  parts: dict[str, int]

  @property
  def total(self) -> int:
    return sum(self.parts.values())


def live(setup: Setup, program: Program, compiled: Compiled, held: Mapping[str, Any]) -> Live:
  """The residents of the run, the program's own arguments, and what it needs beside them.

  The compiler's peak counts arguments that are residents too; they are counted once.
  """
  parts = {name: device_bytes(tree) for name, tree in held.items()}
  for name, tree in program.beside.items():
    parts[name] = device_bytes(tree)
  for name, tree in program.arguments.items():
    # An argument of a name that is not held is there only now, such as a batch; `tables` are
    # parameters under another name.
    if name not in held and name != "tables":
      parts[name] = device_bytes(tree)
  need = max(compiled.peak - compiled.arguments, 0)
  for name, nbytes in split(setup, compiled.buffers, need).items():
    parts[name] = parts.get(name, 0) + nbytes
  return Live(program.name, {name: n for name, n in parts.items() if n})


def split(setup: Setup, buffers: tuple[Buffer, ...], need: int) -> dict[str, int]:
  """`need` bytes by kind of array. The schedule's own sum differs from the compiler's figure by
  padding and by what shares memory: kinds are scaled down, never up, and the rest is named so."""
  kinds: dict[str, int] = defaultdict(int)
  for buffer in buffers:
    kinds[kind(setup, buffer)] += buffer.nbytes
  total = sum(kinds.values())
  scale = min(1.0, need / total) if total else 0.0
  scaled = {name: int(nbytes * scale) for name, nbytes in kinds.items()}
  return scaled | {REST: need - sum(scaled.values())}


def kind(setup: Setup, buffer: Buffer) -> str:
  """What an array of a compiled program is for, by its shape and its place in the program."""
  c = setup.model
  dims = [int(d) for d in buffer.shape.partition("[")[2].rstrip("])").split(",") if d.isdigit()]
  widths = {c.vocab_size // n for n in (1, *setup.mesh.shape.values())} | {c.vocab_size}
  if "gradient" in buffer.source and "transpose" in buffer.source and _like_weights(setup, dims):
    return RESULTS
  if _like_weights(setup, dims):
    return COPIES
  if any(d in widths for d in dims):
    return LOGITS
  if buffer.opcode.startswith(("all-", "reduce-scatter", "collective-", "ragged-")):
    return COLLECTIVES
  if dims and dims[0] in c.stacks.values() and len(dims) > 2:
    return SAVED
  return ACTIVATIONS


def _like_weights(setup: Setup, dims: list[int]) -> bool:
  """Whether the sizes are those of a parameter, of its shard, of one layer of it, or gathered."""
  size = math.prod(dims)
  for leaf in jax.tree.leaves(setup.network):
    if leaf.ndim < 2:
      continue
    whole, shard = math.prod(leaf.shape), math.prod(leaf.sharding.shard_shape(leaf.shape))
    if size in (whole, shard, whole // leaf.shape[0], shard // leaf.shape[0]):
      return True
  return False
