"""The block computations of `kernels.flash` as Pallas kernels for TPUs.

Scores are held transposed, keys on sublanes and queries on lanes: running maxima, sums, lse and
delta are then rows, which broadcast over keys for nothing, and all query heads of a key/value
head share one product, so that keys are read once a group. A pair of blocks that `may_see`
rules out is neither computed nor fetched; its bounds are scalars that the grid reads ahead.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptjax.kernels.blocks import NUM_BOUNDS, Ids, bounds, may_see, sees
from ptjax.kernels.flash import How, Saved, State
from ptjax.kernels.scores import cap
from ptjax.kernels.tpu_transfer import BARRIER, Sent, sending

# G: query heads that share one key/value head. X: G x queries of a block, the lanes of one product.

_VMEM = 64 * 2**20  # v5e, v5p and later have 128 MiB, v7 64
_F32 = jnp.float32


def advance(
  how: How, q, k, v, ids_q: Ids, ids_k: Ids, window, state: State, sent: Sent | None = None
) -> Any:
  """See `flash.advance`; with `sent` the state, and the arrays that arrived meanwhile."""
  call = _Call(how, q, k, ids_q, ids_k, window)
  acc, top, total = state
  stats = call.rows(top), call.rows(total)
  queries, keys, values, sums, row = (
    call.of_queries(q), call.of_keys(k), call.of_keys(v), call.of_queries(acc), call.of_rows
  )  # fmt: skip
  out = call.run(
    functools.partial(_advance, call),
    inner="keys",
    operands=[(queries, q), (keys, k), (values, v), (sums, acc), (row, stats[0]), (row, stats[1])],
    outputs=[(sums, acc), (row, stats[0]), (row, stats[1])],
    aliases={3: 0, 4: 1, 5: 2},
    scratch=[(v.shape[-1], call.lanes), (1, call.lanes), (1, call.lanes)],
    flops=2 * (q.shape[-1] + v.shape[-1]),
    sent=sent,
  )
  state = State(out[0], call.unrows(out[1]), call.unrows(out[2]))
  return state if sent is None else (state, tuple(out[3:]))


def retreat(
  how: How,
  saved: Saved,
  k,
  v,
  ids_q: Ids,
  ids_k: Ids,
  window,
  dq,
  sent: tuple[Sent, Sent] | None = None,
) -> Any:
  """See `flash.retreat`; with `sent` the gradients, and what arrived while each of the two kernels
  computed, that of the queries and that of the keys."""
  call = _Call(how, saved.q_BKGTH, k, ids_q, ids_k, window)
  q, bar = saved.q_BKGTH, saved.bar_BKGTH
  rows = call.rows(saved.lse_BKGT), call.rows(saved.delta_BKGT)
  inputs = [
    (call.of_queries(q), q),
    (call.of_queries(bar), bar),
    (call.of_rows, rows[0]),
    (call.of_rows, rows[1]),
    (call.of_keys(k), k),
    (call.of_keys(v), v),
  ]
  wide, head = q.shape[-1], v.shape[-1]
  sent_q, sent_k = sent or (None, None)
  dq, *arrived_q = call.run(
    functools.partial(_retreat_queries, call),
    inner="keys",
    operands=[*inputs, (call.of_queries(dq), dq)],
    outputs=[(call.of_queries(dq), dq)],
    aliases={6: 0},
    scratch=[(call.lanes, wide)],
    flops=2 * (2 * wide + head),
    sent=sent_q,
  )
  dk, dv = (jax.ShapeDtypeStruct(x.shape, _F32) for x in (k, v))
  dk, dv, *arrived_k = call.run(
    functools.partial(_retreat_keys, call),
    inner="queries",
    operands=inputs,
    outputs=[(call.of_keys(dk), dk), (call.of_keys(dv), dv)],
    aliases={},
    scratch=[(call.size_k, wide), (call.size_k, head)],
    flops=2 * (2 * wide + 2 * head),
    sent=sent_k,
  )
  grads = dq, dk, dv
  return grads if sent is None else (grads, tuple(arrived_q), tuple(arrived_k))


class _Call:
  """Shapes, blocks and ids that the kernels of one call share."""

  def __init__(self, how: How, q, k, ids_q: Ids, ids_k: Ids, window):
    self.how = how
    self.batch, self.kv_heads, self.group, num_queries, _ = q.shape
    self.size_q, self.size_k = how.sizes(self.group, num_queries, k.shape[2])
    self.blocks_q, self.blocks_k = num_queries // self.size_q, k.shape[2] // self.size_k
    self.lanes = self.group * self.size_q
    self.windowed = window is not None
    # SMEM pads the last axis of an array to 128: one axis, then.
    flat = lambda ids, size: bounds(ids, size).reshape(-1)  # noqa: E731
    limit = jnp.full((1,), window if self.windowed else 0, jnp.int32)
    self.scalars = flat(ids_q, self.size_q), flat(ids_k, self.size_k), limit
    self.ids_q_B4T = jnp.stack(ids_q, axis=1)  # rows: queries on lanes
    self.ids_k_BS4 = jnp.stack(ids_k, axis=2)  # columns: keys on sublanes

  def rows(self, x_BKGT):
    """[B, K, X blocks, 1, lanes], the numbers of a block's queries on one row of lanes."""
    x = x_BKGT.reshape(*x_BKGT.shape[:3], self.blocks_q, self.size_q)
    return x.transpose(0, 1, 3, 2, 4).reshape(*x.shape[:2], self.blocks_q, 1, self.lanes)

  def unrows(self, x):
    x = x.reshape(*x.shape[:3], self.group, self.size_q).transpose(0, 1, 3, 2, 4)
    return x.reshape(*x.shape[:3], -1)

  def of_queries(self, x):
    return (1, 1, self.group, self.size_q, x.shape[-1]), lambda b, h, i, j: (b, h, 0, i, 0)

  def of_keys(self, x):
    return (1, 1, self.size_k, x.shape[-1]), lambda b, h, i, j: (b, h, j, 0)

  @property
  def of_rows(self):
    return (1, 1, 1, 1, self.lanes), lambda b, h, i, j: (b, h, i, 0, 0)

  def sees(self, b, i, j, q_ref, k_ref, window_ref):
    """Whether the pair of blocks is computed."""
    q, k = (
      [ref[(b * blocks + n) * NUM_BOUNDS + c] for c in range(NUM_BOUNDS)]
      for ref, n, blocks in ((q_ref, i, self.blocks_q), (k_ref, j, self.blocks_k))
    )
    return may_see(q, k, window_ref[0] if self.windowed else None, self.how.pattern)

  def run(
    self,
    kernel,
    *,
    inner: str,
    operands,
    outputs,
    aliases,
    scratch,
    flops: int,
    sent: Sent | None = None,
  ):
    """Calls a kernel over the grid (batch, head, outer blocks, inner blocks)."""
    by_keys = inner == "keys"
    count = (self.blocks_q, self.blocks_k) if by_keys else (self.blocks_k, self.blocks_q)

    def spec(block, index):
      def where(b, h, outer, last, *scalars):
        i, j = (outer, last) if by_keys else (last, outer)
        # What a pair does not need is not fetched: the same block twice moves nothing.
        last = jnp.where(self.sees(b, i, j, *scalars), last, 0)
        return index(b, h, *((outer, last) if by_keys else (last, outer)))

      return pl.BlockSpec(block, where)

    ids = [
      ((1, 4, self.size_q), lambda b, h, i, j: (b, 0, i)),
      ((1, self.size_k, 4), lambda b, h, i, j: (b, j, 0)),
    ]
    tables = [self.ids_q_B4T, self.ids_k_BS4]
    pairs = self.batch * self.kv_heads * self.lanes * self.blocks_q * self.size_k * self.blocks_k
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for _, x in outputs]
    scratch = [pltpu.VMEM(shape, _F32) for shape in scratch]
    travelling = () if sent is None else sent.arrays
    where = [pl.BlockSpec(memory_space=pl.ANY)] * len(travelling)
    # Two cores would each take a part of a parallel axis; copies have one beginning and one end.
    lead = "parallel" if sent is None else "arbitrary"
    if sent is not None:
      kernel = sending(kernel, sent, 3 + len(ids) + len(operands), len(outputs))
      scratch += [pltpu.SemaphoreType.DMA((len(travelling),))] * 2
      shapes += [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in travelling]
    moved = sum(x.size * x.dtype.itemsize for _, x in (*operands, *outputs))
    return pl.pallas_call(
      kernel,
      out_shape=shapes,
      grid_spec=pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(self.batch, self.kv_heads, *count),
        in_specs=[*(spec(*x) for x in (*ids, *(place for place, _ in operands))), *where],
        out_specs=[*(spec(*place) for place, _ in outputs), *where],
        scratch_shapes=scratch,
      ),
      input_output_aliases={3 + 2 + i: o for i, o in aliases.items()},
      compiler_params=pltpu.CompilerParams(
        dimension_semantics=(lead, lead, lead, "arbitrary"),
        vmem_limit_bytes=_VMEM,
        collective_id=None if sent is None else BARRIER,
        has_side_effects=sent is not None,
      ),
      # Half of all pairs: what a causal row needs.
      cost_estimate=pl.CostEstimate(
        flops=pairs * flops // 2, transcendentals=pairs // 2, bytes_accessed=moved
      ),
      interpret=self.how.engine == "tpu_interpret",
    )(*self.scalars, *tables, *(x for _, x in operands), *travelling)


def _place(call: _Call, scalars, *, inner: str):
  """(whether the pair is computed, whether it is the first and the last of its outer block)."""
  b, outer, last = pl.program_id(0), pl.program_id(2), pl.program_id(3)
  i, j = (outer, last) if inner == "keys" else (last, outer)
  return call.sees(b, i, j, *scalars), last == 0, last == pl.num_programs(3) - 1


def _advance(call: _Call, *refs):
  scalars, (ids_q, ids_k, q, k, v, acc_in, top_in, total_in), out = refs[:3], refs[3:11], refs[11:]
  acc_out, top_out, total_out, acc_HX, top, total = out
  computed, first, last = _place(call, scalars, inner="keys")

  @pl.when(first)
  def _():
    acc_HX[...] = _merged(acc_in[0, 0]).T
    top[...], total[...] = top_in[0, 0, 0], total_in[0, 0, 0]

  @pl.when(computed)
  def _():
    scores_SX, mask, _ = _scores(call, q, k, ids_q, ids_k, scalars[2])
    scores_SX = jnp.where(mask, scores_SX, -jnp.inf)
    new = jnp.maximum(top[...], scores_SX.max(axis=0, keepdims=True))
    safe = jnp.where(new == -jnp.inf, 0.0, new)
    weights = jnp.exp(scores_SX - safe)
    shrink = jnp.exp(top[...] - safe)
    total[...] = total[...] * shrink + weights.sum(axis=0, keepdims=True)
    value = v[0, 0]
    acc_HX[...] = acc_HX[...] * shrink + _product(value, weights.astype(value.dtype), (0, 0))
    top[...] = new

  @pl.when(last)
  def _():
    acc_out[0, 0] = acc_HX[...].T.reshape(acc_out.shape[2:])
    top_out[0, 0, 0], total_out[0, 0, 0] = top[...], total[...]


def _retreat_queries(call: _Call, *refs):
  scalars, (ids_q, ids_k, q, bar, lse, delta, k, v, dq_in), (dq_out, dq) = (
    refs[:3], refs[3:12], refs[12:]
  )  # fmt: skip
  computed, first, last = _place(call, scalars, inner="keys")

  @pl.when(first)
  def _():
    dq[...] = _merged(dq_in[0, 0])

  @pl.when(computed)
  def _():
    _, dscores_SX = _weights(call, q, bar, lse, delta, k, v, ids_q, ids_k, scalars[2])
    dq[...] += _product(dscores_SX.astype(k.dtype), k[0, 0], (0, 0))

  @pl.when(last)
  def _():
    dq_out[0, 0] = dq[...].reshape(dq_out.shape[2:])


def _retreat_keys(call: _Call, *refs):
  scalars, (ids_q, ids_k, q, bar, lse, delta, k, v), (dk_out, dv_out, dk, dv) = (
    refs[:3], refs[3:11], refs[11:]
  )  # fmt: skip
  computed, first, last = _place(call, scalars, inner="queries")

  @pl.when(first)
  def _():
    dk[...], dv[...] = jnp.zeros_like(dk), jnp.zeros_like(dv)

  @pl.when(computed)
  def _():
    weights_SX, dscores_SX = _weights(call, q, bar, lse, delta, k, v, ids_q, ids_k, scalars[2])
    dk[...] += _product(dscores_SX.astype(q.dtype), _merged(q[0, 0]), (1, 0))
    dv[...] += _product(weights_SX.astype(bar.dtype), _merged(bar[0, 0]), (1, 0))

  @pl.when(last)
  def _():
    dk_out[0, 0], dv_out[0, 0] = dk[...], dv[...]


def _scores(call: _Call, q, k, ids_q, ids_k, window):
  """(scores f32[S, X], mask bool[S, X], d score / d (q k^T))."""
  how = call.how
  raw = _product(k[0, 0], _merged(q[0, 0]), (1, 1)) * how.scale
  scores = cap(raw, how.cap)
  slope = how.scale if how.cap is None else how.scale * (1 - (scores / how.cap) ** 2)
  queries, keys = ids_q[0], ids_k[0]
  q_ids = Ids(*(queries[n : n + 1] for n in range(4)))  # [1, queries]
  k_ids = Ids(*(keys[:, n : n + 1] for n in range(4)))  # [keys, 1]
  mask = sees(q_ids, k_ids, window[0] if call.windowed else None, how.pattern)
  return scores, jnp.concatenate([mask] * call.group, axis=1), slope


def _weights(call: _Call, q, bar, lse, delta, k, v, ids_q, ids_k, window):
  """(weights, d loss / d (q k^T)), f32[S, X] both."""
  scores_SX, mask, slope = _scores(call, q, k, ids_q, ids_k, window)
  weights_SX = jnp.exp(jnp.where(mask, scores_SX, -jnp.inf) - lse[0, 0, 0])
  dweights_SX = _product(v[0, 0], _merged(bar[0, 0]), (1, 1))
  dscores_SX = weights_SX * (dweights_SX - delta[0, 0, 0]) * slope
  return weights_SX, jnp.where(mask, dscores_SX, 0.0)


def _merged(x_GTH):
  """[G x T, H]."""
  return x_GTH.reshape(-1, x_GTH.shape[-1])


def _product(x, y, over: tuple[int, int]):
  """f32 product of two matrices over one axis of each; float32 operands keep all their bits."""
  precision = jax.lax.Precision.HIGHEST if x.dtype == _F32 else None
  dims = (((over[0],), (over[1],)), ((), ()))
  return jax.lax.dot_general(x, y, dims, precision=precision, preferred_element_type=_F32)
