"""Attention over rows that are cut along the `context` axis of a mesh, and which way to compute it.

  ring        keys travel; memory and traffic per device do not grow with the devices
  all_gather  every device gets all keys; best where shards are too short to hide a hop
  ulysses     heads are cut instead of the row for the time of attention

Source of the last: Jacobs et al., 2023, "DeepSpeed Ulysses".
"""

import dataclasses
import logging
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ptjax.kernels import flash
from ptjax.kernels.blocks import Ids
from ptjax.kernels.chips import Chip, chip_of
from ptjax.kernels.flash import Engine, How
from ptjax.kernels.layout import Layout, LayoutName
from ptjax.kernels.ring import TRANSFERS, Ring, Transfer, ring_attend
from ptjax.kernels.scores import Scores
from ptjax.kernels.sparse import Pattern

Way = Literal["ring", "all_gather", "ulysses"]
WAYS: tuple[Way, ...] = ("ring", "all_gather", "ulysses")
AUTO = "auto"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Context:
  """Where the rows of a batch are cut, and how attention crosses the cuts.

  Attributes:
    mesh: the devices.
    axis: the mesh axis that cuts rows; None cuts none.
    batch, heads: mesh axes of batch rows and of heads.
    layout: which tokens each shard holds.
    way: one of `WAYS`; auto decides by shard length and chip.
    engine: where blocks are computed; None: TPU kernels on a TPU's mesh.
    block: queries and keys of a block.
    transfer: how a ring's keys travel, see `Ring`.
  """

  mesh: Mesh
  axis: str | None = "context"
  batch: tuple[str, ...] = ()
  heads: tuple[str, ...] = ()
  layout_name: LayoutName = "zigzag"
  way: Way | Literal["auto"] = "auto"
  engine: Engine | None = None
  block: int | None = None
  transfer: Transfer = "xla"

  def __post_init__(self):
    if self.transfer not in TRANSFERS:
      raise ValueError(
        f"context transfer {self.transfer!r} is unknown; use {' or '.join(TRANSFERS)}"
      )
    if self.way not in (*WAYS, AUTO):
      raise ValueError(f"context attention {self.way!r} is unknown; use auto, {', '.join(WAYS)}")

  @property
  def layout(self) -> Layout:
    return Layout(self.layout_name, 1 if self.axis is None else self.mesh.shape[self.axis])

  @property
  def cut(self) -> str:
    """The axis, of a context that cuts rows."""
    assert self.axis is not None
    return self.axis

  @property
  def chip(self) -> Chip | None:
    return chip_of(self.mesh.devices.flat[0])

  def how(self, scores: Scores, head_dim: int, pattern: Pattern | None = None) -> How:
    on_tpu = self.mesh.devices.flat[0].platform == "tpu"
    engine = self.engine or ("tpu" if on_tpu else "jnp")
    return How.of(scores, head_dim, engine, self.block, pattern)


@dataclasses.dataclass(frozen=True)
class Choice:
  """A way to compute attention, and why it was taken."""

  way: Way
  why: str


def least_ring_shard(chip: Chip, num_heads: int, num_kv_heads: int) -> int:
  """Tokens of a shard from which a hop of a causal ring hides behind its computation.

  A hop sends 4 K H t bytes (keys and values, bfloat16) and, balanced, computes 2 N H t^2 FLOPs:

      t = 2 (K / N) (FLOP/s) / (link bytes/s)
  """
  return math.ceil(2 * num_kv_heads / num_heads * chip.flops / chip.link)


def choose(
  configured: str, chip: Chip | None, shard: int, num_heads: int, num_kv_heads: int
) -> Choice:
  """How attention over shards of so many tokens is computed, and why.

  Args:
    configured: one of `WAYS`, or auto.
    chip: what computes; None where no link starves, as on fake devices.
    shard: tokens of a row on one device.
    num_heads, num_kv_heads: of the model.
  """
  if configured in WAYS:
    return Choice(configured, "as configured")
  if chip is None:
    return Choice("ring", "no link of a known chip to starve")
  least = least_ring_shard(chip, num_heads, num_kv_heads)
  why = f"shards of {shard} tokens, {chip.name} hides a hop from {least} on"
  return Choice("ring" if shard >= least else "all_gather", why)


def context_attention(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  context: Context,
  segment_ids_BT: jax.Array,
  branch_ids_BT: jax.Array,
  positions_BT: jax.Array,
  scores: Scores,
  window: jax.Array | int | None = None,
  sinks_N: jax.Array | None = None,
  pattern: Pattern | None = None,
) -> jax.Array:
  """`kernels.attention` of rows in the stored order of `context.layout`, cut over its axis.

  Raises:
    ValueError: a length that the layout cannot cut, heads that do not divide.
  """
  layout, length = context.layout, q_BTNH.shape[1]
  if length != layout.padded(length):
    raise ValueError(
      f"rows of {length} tokens cannot be cut over {layout.shards} shards in {layout.name} order; "
      f"store them with Layout.store, which pads them to {layout.padded(length)}"
    )
  num_heads, num_kv = q_BTNH.shape[2], k_BTKH.shape[2]
  way = "whole"
  if layout.shards > 1:
    choice = choose(context.way, context.chip, length // layout.shards, num_heads, num_kv)
    way = choice.way
    _log.info("attention over %d tokens: %s, %s; %s", length, way, layout.name, choice.why)
  rows = PartitionSpec(context.batch, context.axis)
  whole = PartitionSpec(context.batch, context.axis, context.heads)
  local = {"whole": _whole, "ring": _ring, "all_gather": _all_gather, "ulysses": _ulysses}[way]

  def shard(q, k, v, sinks, window, segment, branch, position):
    first = 0 if context.axis is None else jax.lax.axis_index(context.axis) * q.shape[1]
    index_T = layout.index_of(first + jnp.arange(q.shape[1]), length)
    ids = Ids(segment, branch, position, jnp.broadcast_to(index_T, q.shape[:2]))
    how = context.how(scores, q.shape[-1], pattern)
    return local(context, how, q, k, v, sinks, window, ids)

  window = None if window is None else jnp.asarray(window, jnp.int32)
  return jax.shard_map(
    shard,
    mesh=context.mesh,
    in_specs=(whole, whole, whole, PartitionSpec(context.heads), PartitionSpec(), *(rows,) * 3),
    out_specs=whole,
    check_vma=False,
  )(q_BTNH, k_BTKH, v_BTKH, sinks_N, window, segment_ids_BT, branch_ids_BT, positions_BT)


# Rows of hidden states that `take_tokens` holds at a time, over all shards of a row.
_TAKEN = 16_384


def take_tokens(context: Context, x_BTD: jax.Array, index_BA: jax.Array) -> jax.Array:
  """x_BAD, the tokens of given indices in the row; x is cut and stored, the result cut over A.

  Each shard gives what it has of a piece of the slots of every shard, and a reduction by scatter
  brings the sum to where it belongs; no device ever has all slots, nor all tokens.
  """
  layout, length = context.layout, x_BTD.shape[1]
  slots = index_BA.shape[1]
  mine = -(-slots // layout.shards)
  piece = max(1, min(mine, _TAKEN // layout.shards))
  mine = -(-mine // piece) * piece
  places_BA = layout.stored_at(
    jnp.pad(index_BA, ((0, 0), (0, mine * layout.shards - slots))), length
  )

  def shard(x, places):
    here = places - jax.lax.axis_index(context.cut) * x.shape[1]
    pieces = here.reshape(-1, layout.shards, mine // piece, piece).transpose(2, 0, 1, 3)

    @jax.checkpoint  # else the backward pass keeps, for every token of the row, what is here
    def one(here):
      here = here.reshape(here.shape[0], -1, 1)
      found = jnp.take_along_axis(x, jnp.clip(here, 0, x.shape[1] - 1), axis=1)
      found = jnp.where((here >= 0) & (here < x.shape[1]), found, 0)
      return jax.lax.psum_scatter(found, context.cut, scatter_dimension=1, tiled=True)

    taken = jax.lax.map(one, pieces)  # [pieces, B, piece, D]
    return taken.swapaxes(0, 1).reshape(-1, mine, x.shape[-1])

  tokens = PartitionSpec(context.batch, context.axis)
  taken = jax.shard_map(
    shard,
    mesh=context.mesh,
    in_specs=(tokens, PartitionSpec(context.batch)),
    out_specs=tokens,
    check_vma=False,
  )(x_BTD, places_BA)
  return taken[:, :slots]


def flash_attention(how: How, q_BTNH, k_BSKH, v_BSKH, sinks_N, window, ids_q: Ids, ids_k: Ids):
  """Attention on one device in memory linear in the length; out_BTNH."""
  folded = _fold(how, q_BTNH, k_BSKH, v_BSKH, sinks_N, ids_q, ids_k)
  q, k, v, sink, ids_q, ids_k = folded
  return _unfold(flash.attend(how, q, k, v, sink, window, ids_q, ids_k), q_BTNH.shape[1])


def _whole(context: Context, how: How, q, k, v, sinks, window, ids: Ids):
  del context
  return flash_attention(how, q, k, v, sinks, window, ids, ids)


def _ring(context: Context, how: How, q, k, v, sinks, window, ids: Ids):
  length = q.shape[1]
  # Queries and keys travel under the same ids, so they are padded alike.
  size_q, size_k = how.sizes(q.shape[2] // k.shape[2], length, length)
  missing = -length % math.lcm(size_q, size_k)
  q, k, v = (jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0))) for x in (q, k, v))
  ids = ids.pad(missing)
  q, k, v, sink, ids, _ = _fold(how, q, k, v, sinks, ids, ids)
  if context.transfer == "dma" and how.engine == "jnp":
    raise ValueError("context transfer 'dma' is the TPU kernels'; use 'xla' on other platforms")
  shards, axes = context.layout.shards, context.mesh.axis_names
  ring = Ring(context.cut, shards, axes, how, context.transfer)
  return _unfold(ring_attend(ring, q, k, v, sink, window, ids), length)


def _all_gather(context: Context, how: How, q, k, v, sinks, window, ids: Ids):
  gather = lambda x: jax.lax.all_gather(x, context.cut, axis=1, tiled=True)  # noqa: E731
  return flash_attention(how, q, gather(k), gather(v), sinks, window, ids, Ids(*map(gather, ids)))


def _ulysses(context: Context, how: How, q, k, v, sinks, window, ids: Ids):
  shards, num_kv = context.layout.shards, k.shape[2]
  if num_kv % shards:
    raise ValueError(
      f"ulysses cuts the {num_kv} key/value heads of a device over {shards} shards, which do not "
      f"divide them; use context attention ring or all_gather"
    )

  def heads(x):
    return jax.lax.all_to_all(x, context.cut, split_axis=2, concat_axis=1, tiled=True)

  if sinks is not None:
    mine = jax.lax.axis_index(context.cut) * (sinks.shape[0] // shards)
    sinks = jax.lax.dynamic_slice_in_dim(sinks, mine, sinks.shape[0] // shards)
  ids = Ids(*(jax.lax.all_gather(x, context.cut, axis=1, tiled=True) for x in ids))
  out = flash_attention(how, heads(q), heads(k), heads(v), sinks, window, ids, ids)
  return jax.lax.all_to_all(out, context.cut, split_axis=1, concat_axis=2, tiled=True)


def _fold(how: How, q_BTNH, k_BSKH, v_BSKH, sinks_N, ids_q: Ids, ids_k: Ids):
  """Heads before tokens, queries by their key/value head, lengths multiples of the blocks."""
  rows, length, _, head_dim = q_BTNH.shape
  num_keys, num_kv = k_BSKH.shape[1:3]
  group = q_BTNH.shape[2] // num_kv
  size_q, size_k = how.sizes(group, length, num_keys)
  more_q, more_k = -length % size_q, -num_keys % size_k
  q_BTKGH = q_BTNH.reshape(rows, length, num_kv, group, head_dim)
  q = jnp.pad(q_BTKGH.transpose(0, 2, 3, 1, 4), ((0, 0), (0, 0), (0, 0), (0, more_q), (0, 0)))
  k, v = (
    jnp.pad(x.transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, more_k), (0, 0)))
    for x in (k_BSKH, v_BSKH)
  )
  sink = None if sinks_N is None else sinks_N.astype(jnp.float32).reshape(num_kv, group)
  return q, k, v, sink, ids_q.pad(more_q), ids_k.pad(more_k)


def _unfold(out_BKGTH, length: int):
  out_BTKGH = out_BKGTH[:, :, :, :length].transpose(0, 3, 1, 2, 4)
  return out_BTKGH.reshape(*out_BTKGH.shape[:2], -1, out_BTKGH.shape[-1])
