"""Ring attention: keys and values travel round the shards of a sequence, queries stay.

At hop d the shard r holds the keys of shard r - d. One document that fills the row needs all
R - 1 hops: each sends the keys on while it computes with them. Where windows or packing leave
shards that nobody sees, those hops are not made: the keys jump to the next shard that somebody
needs. In the backward pass dK and dV travel one hop behind the keys, and home at the end.

Source: Liu et al., 2023, "Ring Attention with Blockwise Transformers".
"""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp

from ptjax.kernels import flash
from ptjax.kernels.blocks import Ids, block_table, bounds
from ptjax.kernels.flash import How, Saved

Transfer = Literal["xla", "dma"]
TRANSFERS: tuple[Transfer, ...] = ("xla", "dma")


@dataclasses.dataclass(frozen=True)
class Ring:
  """A ring of shards, and how each computes.

  Attributes:
    axis: the mesh axis along which sequences are cut.
    size: its devices.
    all_axes: every axis of the mesh: they agree on the hops to make.
    how: how blocks are computed.
    transfer: `xla`, collectives of the program, which XLA lets overlap with kernels; `dma`, copies
      that the TPU kernels make themselves while they compute. Hops that are not all made, and the
      last of the backward pass, are XLA's.
  """

  axis: str
  size: int
  all_axes: tuple[str, ...]
  how: How
  transfer: Transfer = "xla"

  def shift(self, tree, by: int = 1):
    """Sends arrays to the shard `by` places on."""
    pairs = [(i, (i + by) % self.size) for i in range(self.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, pairs), tree)

  def sent(self, arrays):
    """What a TPU kernel sends to the next shard."""
    from ptjax.kernels.tpu_transfer import Sent

    return Sent(self.axis, self.size, tuple(arrays))

  def jump(self, tree, by: jax.Array):
    """`shift` by a number known at run time, the same everywhere: its powers of two, one by one."""
    for bit in range((self.size - 1).bit_length()):
      move = functools.partial(self.shift, by=1 << bit)
      tree = jax.lax.cond((by >> bit) & 1 == 1, move, lambda x: x, tree)
    return tree


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def ring_attend(ring: Ring, q_BKGTH, k_BKTH, v_BKTH, sink_KG, window, ids: Ids):
  """`flash.attend` of every query over the keys of all shards; under `shard_map`."""
  return _forward(ring, q_BKGTH, k_BKTH, v_BKTH, sink_KG, window, ids)[0]


def needed_hops(ring: Ring, ids: Ids, window, size_q: int, size_k: int):
  """(hops i32[R - 1] ascending, their number): the hops at which any shard has a key to see.

  Every device of the mesh gets the same answer, since all of them take part in a hop.
  """
  keys = jax.lax.all_gather(bounds(ids, size_k), ring.axis)
  table = lambda k: block_table(bounds(ids, size_q), k, window, ring.how.pattern)  # noqa: E731
  sees_R = jax.vmap(lambda k: jnp.any(table(k)))(keys)
  hops = jnp.arange(1, ring.size)
  mine = sees_R[(jax.lax.axis_index(ring.axis) - hops) % ring.size]
  needed = jax.lax.pmax(mine.astype(jnp.int32), ring.all_axes)
  return jnp.sort(jnp.where(needed == 1, hops, ring.size)), jnp.sum(needed)


def _forward(ring: Ring, q, k, v, sink, window, ids: Ids):
  hops, count = _hops(ring, q, k, ids, window)

  def fold(state, keys):
    k, v, ids_k = keys
    return flash.advance(ring.how, q, k, v, ids, Ids(*ids_k), window, state)

  def fold_and_send(state, keys):
    if ring.transfer == "xla":
      return fold(state, keys), ring.shift(keys)
    from ptjax.kernels import tpu_flash

    k, v, ids_k = keys
    return tpu_flash.advance(ring.how, q, k, v, ids, Ids(*ids_k), window, state, ring.sent(keys))

  def whole(state, keys):
    def hop(carry, _):
      return fold_and_send(*carry), None

    (state, keys), _ = jax.lax.scan(hop, (state, keys), length=ring.size - 1)
    return fold(state, keys)

  def jumps(state, keys):
    def hop(carry):
      n, at, state, keys = carry
      keys = ring.jump(keys, hops[n] - at)
      return n + 1, hops[n], fold(state, keys), keys

    zero = jnp.zeros((), jnp.int32)
    start = zero, zero, fold(state, keys), keys
    return jax.lax.while_loop(lambda carry: carry[0] < count, hop, start)[2]

  start = flash.begin(q, v.shape[-1]), (k, v, jnp.stack(ids))  # one array, one transfer
  state = jax.lax.cond(count == ring.size - 1, whole, jumps, *start)
  out, lse = flash.finish(state, sink, q.dtype)
  return out, (q, k, v, sink, window, ids, out, lse)


def _backward(ring: Ring, residuals, bar):
  q, k, v, sink, window, ids, out, lse = residuals
  saved = Saved.of(q, out, lse, bar)
  hops, count = _hops(ring, q, k, ids, window)

  def fold(dq, keys):
    """dq with these keys' part, and this shard's part of their gradient."""
    k, v, ids_k = keys
    dq, dk, dv = flash.retreat(ring.how, saved, k, v, ids, Ids(*ids_k), window, dq)
    return dq, (dk, dv)

  add = functools.partial(jax.tree.map, jnp.add)

  def fold_and_send(dq, keys, sums):
    if ring.transfer == "xla":
      sums, keys_next = ring.shift(sums), ring.shift(keys)
      dq, part = fold(dq, keys)
      return dq, keys_next, sums, part
    from ptjax.kernels import tpu_flash

    k, v, ids_k = keys
    sent = ring.sent(keys), ring.sent(sums)
    (dq, *part), keys, sums = tpu_flash.retreat(
      ring.how, saved, k, v, ids, Ids(*ids_k), window, dq, sent
    )
    return dq, keys, sums, tuple(part)

  def whole(dq, keys):
    # What comes along with the keys is the sum before the last shard's part, which that shard
    # adds while it already computes with the next keys.
    def hop(carry, _):
      dq, keys, late, part = carry
      return fold_and_send(dq, keys, add(late, part)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), keys[:2])
    dq, part = fold(dq, keys)
    carry = dq, ring.shift(keys), zeros, part
    (dq, keys, late, part), _ = jax.lax.scan(hop, carry, length=ring.size - 2)
    late = ring.shift(add(late, part))
    dq, part = fold(dq, keys)
    return dq, ring.shift(add(late, part))

  def jumps(dq, keys):
    def hop(carry):
      n, at, dq, keys, sums = carry
      keys, sums = ring.jump((keys, sums), hops[n] - at)
      dq, part = fold(dq, keys)
      return n + 1, hops[n], dq, keys, add(sums, part)

    zero = jnp.zeros((), jnp.int32)
    dq, part = fold(dq, keys)
    carry = zero, zero, dq, keys, part
    _, at, dq, _, sums = jax.lax.while_loop(lambda carry: carry[0] < count, hop, carry)
    return dq, ring.jump(sums, (ring.size - at) % ring.size)

  start = jnp.zeros(q.shape, jnp.float32), (k, v, jnp.stack(ids))
  dq, (dk, dv) = jax.lax.cond(count == ring.size - 1, whole, jumps, *start)
  dsink = None if sink is None else flash.sink_grad(sink, saved)
  return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dsink, None, None


ring_attend.defvjp(_forward, _backward)


def _hops(ring: Ring, q, k, ids: Ids, window):
  sizes = ring.how.sizes(q.shape[2], q.shape[3], k.shape[2])
  return needed_hops(ring, ids, window, *sizes)
