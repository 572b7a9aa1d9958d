"""Attention by pairs of blocks, in memory linear in the length: an online softmax over key blocks.

`advance` folds a set of keys into the state of all queries, `retreat` is its backward pass; on
one device they see all keys at once, in a ring those of one shard after the other. Off TPU both
run here, over a list of the pairs of blocks that `kernels.blocks` admits; `kernels.tpu_flash`
has the TPU's.

Sources: Milakov and Gimelshein, 2018 (online softmax); Dao et al., 2022 (flash attention).
"""

import dataclasses
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ptjax.kernels.blocks import Ids, block_table, bounds, pair_mask
from ptjax.kernels.scores import Scores, cap
from ptjax.kernels.sparse import Pattern

# G: query heads that share one key/value head. X: G x block, the rows of one product.

OUTPUTS = ("attention_out", "attention_lse")
"""Names of what a rematerialisation policy keeps so that attention is not computed again."""

Engine = Literal["jnp", "tpu", "tpu_interpret"]


@dataclasses.dataclass(frozen=True)
class How:
  """How scores are made and where blocks are computed.

  Attributes:
    scale: scores are multiplied by it.
    cap: soft cap of the scores, or None.
    engine: jnp, the TPU kernels, or those interpreted.
    block: queries and keys of a block; for the TPU kernels at most.
    pattern: of sparse attention; None for all keys.
  """

  scale: float
  cap: float | None = None
  engine: Engine = "jnp"
  block: int = 256
  pattern: Pattern | None = None

  @staticmethod
  def of(
    scores: Scores,
    head_dim: int,
    engine: Engine = "jnp",
    block: int | None = None,
    pattern: Pattern | None = None,
  ) -> "How":
    block = block or (256 if engine == "jnp" else 1024)
    return How(scores.scale_of(head_dim), scores.cap, engine, block, pattern)

  def sizes(self, group: int, num_queries: int, num_keys: int) -> tuple[int, int]:
    """Queries and keys of a block."""
    if self.engine == "jnp":
      return min(self.block, num_queries), min(self.block, num_keys)
    # Rows of one product are lanes of the TPU: group x queries is a multiple of 128.
    queries = max(128, min(self.block, 1024) // group // 128 * 128)
    whole = lambda n: -(-n // 128) * 128  # noqa: E731
    return min(queries, whole(num_queries)), min(self.block, 512, whole(num_keys))


class State(NamedTuple):
  """Of each query: sum of weighted values, greatest score, sum of weights; f32."""

  acc_BKGTH: jax.Array
  top_BKGT: jax.Array
  total_BKGT: jax.Array


class Saved(NamedTuple):
  """What the backward pass reads of the queries: with their output gradient."""

  q_BKGTH: jax.Array
  bar_BKGTH: jax.Array
  lse_BKGT: jax.Array
  delta_BKGT: jax.Array  # sum over the head of output x its gradient

  @staticmethod
  def of(q, out, lse, bar) -> "Saved":
    delta = jnp.sum(out.astype(jnp.float32) * bar.astype(jnp.float32), axis=-1)
    return Saved(q, bar, lse, delta)


def begin(q_BKGTH: jax.Array, value_dim: int) -> State:
  """The state of queries that have seen no key."""
  lead = q_BKGTH.shape[:-1]
  return State(
    jnp.zeros((*lead, value_dim), jnp.float32),
    jnp.full(lead, -jnp.inf, jnp.float32),
    jnp.zeros(lead, jnp.float32),
  )


def finish(state: State, sink_KG: jax.Array | None, dtype) -> tuple[jax.Array, jax.Array]:
  """(out_BKGTH, lse_BKGT f32): weighted means, and the logarithm of the sum of exp(scores).

  A query that sees no key gives 0, and lse 0: two empty parts never meet as inf - inf.
  """
  acc, top, total = state
  safe = jnp.where(jnp.isfinite(top), top, 0.0)
  if sink_KG is not None:
    sink = sink_KG[:, :, None]
    new = jnp.maximum(top, sink)
    shrink = jnp.exp(top - new)
    acc, total, safe = acc * shrink[..., None], total * shrink + jnp.exp(sink - new), new
  empty = total == 0
  total = jnp.where(empty, 1.0, total)
  out = checkpoint_name((acc / total[..., None]).astype(dtype), OUTPUTS[0])
  return out, checkpoint_name(jnp.where(empty, 0.0, safe + jnp.log(total)), OUTPUTS[1])


def sink_grad(sink_KG: jax.Array, saved: Saved) -> jax.Array:
  """d loss / d sink: the sink's weight takes from every value."""
  weight_BKGT = jnp.exp(sink_KG[:, :, None] - saved.lse_BKGT)
  return -jnp.sum(weight_BKGT * saved.delta_BKGT, axis=(0, 3))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(how: How, q_BKGTH, k_BKSH, v_BKSH, sink_KG, window, ids_q: Ids, ids_k: Ids):
  """out_BKGTH over all keys at once; lengths are multiples of the blocks."""
  return _attend_forward(how, q_BKGTH, k_BKSH, v_BKSH, sink_KG, window, ids_q, ids_k)[0]


def _attend_forward(how, q, k, v, sink, window, ids_q, ids_k):
  state = advance(how, q, k, v, ids_q, ids_k, window, begin(q, v.shape[-1]))
  out, lse = finish(state, sink, q.dtype)
  return out, (q, k, v, sink, window, ids_q, ids_k, out, lse)


def _attend_backward(how, residuals, bar):
  q, k, v, sink, window, ids_q, ids_k, out, lse = residuals
  saved = Saved.of(q, out, lse, bar)
  dq, dk, dv = retreat(how, saved, k, v, ids_q, ids_k, window, jnp.zeros(q.shape, jnp.float32))
  dsink = None if sink is None else sink_grad(sink, saved)
  return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dsink, None, None, None


attend.defvjp(_attend_forward, _attend_backward)


def advance(how: How, q, k_BKSH, v_BKSH, ids_q: Ids, ids_k: Ids, window, state: State) -> State:
  """The state after the queries have seen these keys; lengths are multiples of the blocks."""
  if how.engine != "jnp":
    from ptjax.kernels import tpu_flash

    return tpu_flash.advance(how, q, k_BKSH, v_BKSH, ids_q, ids_k, window, state)
  _, _, group, num_queries, _ = q.shape
  size_q, size_k = how.sizes(group, num_queries, k_BKSH.shape[2])

  def step(row, i, j, state: State) -> State:
    q_KXH = _query_block(q, row, i, size_q)
    k_KSH, v_KSH = (_key_block(x, row, j, size_k) for x in (k_BKSH, v_BKSH))
    acc, top, total = (_query_block(x, row, i, size_q) for x in state)
    scores_KXS, mask = _scores(how, q_KXH, k_KSH, ids_q, ids_k, window, row, i, j, group)[:2]
    scores_KXS = jnp.where(mask, scores_KXS, -jnp.inf)
    new = jnp.maximum(top, scores_KXS.max(-1))
    safe = jnp.where(jnp.isfinite(new), new, 0.0)
    weights = jnp.exp(scores_KXS - safe[..., None])
    shrink = jnp.exp(top - safe)
    total = total * shrink + weights.sum(-1)
    more = jnp.einsum(
      "KXS,KSH->KXH", weights.astype(v_KSH.dtype), v_KSH, preferred_element_type=jnp.float32
    )
    parts = (acc * shrink[..., None] + more, new, total)
    return State(*(_put_queries(x, y, row, i, size_q) for x, y in zip(state, parts, strict=True)))

  table = block_table(bounds(ids_q, size_q), bounds(ids_k, size_k), window, how.pattern)
  return _over_pairs(step, state, table)


def retreat(how: How, saved: Saved, k_BKSH, v_BKSH, ids_q: Ids, ids_k: Ids, window, dq_BKGTH):
  """Adds these keys' part to dq; returns it with the queries' part of dk and dv, all f32."""
  if how.engine != "jnp":
    from ptjax.kernels import tpu_flash

    return tpu_flash.retreat(how, saved, k_BKSH, v_BKSH, ids_q, ids_k, window, dq_BKGTH)
  _, _, group, num_queries, _ = saved.q_BKGTH.shape
  size_q, size_k = how.sizes(group, num_queries, k_BKSH.shape[2])

  def step(row, i, j, grads):
    dq, dk, dv = grads
    q_KXH, bar_KXH, lse_KX, delta_KX = (_query_block(x, row, i, size_q) for x in saved)
    k_KSH, v_KSH = (_key_block(x, row, j, size_k) for x in (k_BKSH, v_BKSH))
    scores_KXS, mask, slope = _scores(how, q_KXH, k_KSH, ids_q, ids_k, window, row, i, j, group)
    weights = jnp.exp(jnp.where(mask, scores_KXS, -jnp.inf) - lse_KX[..., None])
    product = lambda spec, x, y: jnp.einsum(  # noqa: E731
      spec, x.astype(y.dtype), y, preferred_element_type=jnp.float32
    )
    dweights = product("KXH,KSH->KXS", bar_KXH, v_KSH)
    dscores = jnp.where(mask, weights * (dweights - delta_KX[..., None]) * slope, 0.0)
    dq = _add_queries(dq, product("KXS,KSH->KXH", dscores, k_KSH), row, i, size_q)
    dk = _add_keys(dk, product("KXS,KXH->KSH", dscores, q_KXH), row, j, size_k)
    dv = _add_keys(dv, product("KXS,KXH->KSH", weights, bar_KXH), row, j, size_k)
    return dq, dk, dv

  zeros = (jnp.zeros(x.shape, jnp.float32) for x in (k_BKSH, v_BKSH))
  table = block_table(bounds(ids_q, size_q), bounds(ids_k, size_k), window, how.pattern)
  return _over_pairs(step, (dq_BKGTH, *zeros), table)


def _over_pairs(step, carry, table_BXY: jax.Array):
  """Folds `step(row, i, j, carry)` over the pairs of blocks that may see each other, no others."""
  shape = table_BXY.shape
  first = jnp.argsort(~table_BXY.reshape(-1), stable=True)

  def body(state):
    n, carry = state
    return n + 1, step(*jnp.unravel_index(first[n], shape), carry)

  count = jnp.sum(table_BXY)
  return jax.lax.while_loop(lambda s: s[0] < count, body, (jnp.zeros((), count.dtype), carry))[1]


def _scores(how: How, q_KXH, k_KSH, ids_q: Ids, ids_k: Ids, window, row, i, j, group: int):
  """(scores f32[K, X, S], mask bool[X, S], d score / d (q k^T))."""
  size_q, size_k = q_KXH.shape[1] // group, k_KSH.shape[1]
  ids = ids_q.block(row, i * size_q, size_q), ids_k.block(row, j * size_k, size_k)
  mask = jnp.tile(pair_mask(*ids, window, how.pattern), (group, 1))
  raw = jnp.einsum("KXH,KSH->KXS", q_KXH, k_KSH, preferred_element_type=jnp.float32) * how.scale
  scores = cap(raw, how.cap)
  slope = how.scale if how.cap is None else how.scale * (1 - (scores / how.cap) ** 2)
  return scores, mask, slope


def _query_block(x, row, i, size: int):
  """Block i of x[B, K, G, T, ...] as [K, G x size, ...]."""
  start = (row, 0, 0, i * size, *(0 for _ in x.shape[4:]))
  block = jax.lax.dynamic_slice(x, start, (1, *x.shape[1:3], size, *x.shape[4:]))
  return block.reshape(x.shape[1], x.shape[2] * size, *x.shape[4:])


def _put_queries(x, block, row, i, size: int):
  start = (row, 0, 0, i * size, *(0 for _ in x.shape[4:]))
  block = block.reshape(1, *x.shape[1:3], size, *x.shape[4:])
  return jax.lax.dynamic_update_slice(x, block, start)


def _add_queries(x, block, row, i, size: int):
  return _put_queries(x, _query_block(x, row, i, size) + block, row, i, size)


def _key_block(x, row, j, size: int):
  """Block j of x[B, K, S, H] as [K, size, H]."""
  start = (row, 0, j * size, 0)
  return jax.lax.dynamic_slice(x, start, (1, x.shape[1], size, x.shape[3]))[0]


def _add_keys(x, block, row, j, size: int):
  new = _key_block(x, row, j, size) + block
  return jax.lax.dynamic_update_slice(x, new[None], (row, 0, j * size, 0))
