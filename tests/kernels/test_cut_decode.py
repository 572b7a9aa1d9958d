"""Decoding over a cache that is cut over devices, against the cache in one piece."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import HEADS, qkv
from jax.sharding import Mesh, PartitionSpec

from ptjax.kernels.decode import cut_decode_attention, decode_attention
from ptjax.kernels.scores import PLAIN, Scores
from ptjax.kernels.sparse import Pattern
from ptjax.sharding.collectives import collectives

SIZE = 16
LENGTHS = np.asarray([1, 5, 16, 9], np.int32)  # most devices have nothing of the first slot


def inputs(heads: str, dtype=jnp.float32):
  q, k, v = qkv(heads, (len(LENGTHS), SIZE))
  return tuple(jnp.asarray(x, dtype) for x in (q[:, 0], np.moveaxis(k, 1, 3), np.moveaxis(v, 1, 2)))


def over(shards: int, q, k, v, lengths=LENGTHS, sinks=None, **settings):
  mesh = Mesh(np.asarray(jax.devices()[:shards]), ("context",))
  keys, values = PartitionSpec(None, None, None, "context"), PartitionSpec(None, None, "context")

  def shard(q, k, v, lengths, sinks):
    return cut_decode_attention(q, k, v, lengths, axis="context", sinks_N=sinks, **settings)

  everywhere = PartitionSpec()
  specs = everywhere, keys, values, everywhere, everywhere
  run = jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=everywhere)
  return jax.jit(run)(q, k, v, lengths, sinks)


@pytest.mark.parametrize(
  ("shards", "heads", "settings", "sinks"),
  [
    (2, "gqa", {}, False),
    (4, "mqa", {"window": 4, "scores": Scores(0.5, 3.0)}, True),
    (8, "mha", {"pattern": Pattern(2, global_tokens=1, stride=4, block=2)}, False),
    (8, "gqa", {"scores": PLAIN}, True),
  ],
)
def test_equals_the_cache_in_one_piece(shards, heads, settings, sinks):
  arrays = inputs(heads)
  sink = jnp.linspace(-1.0, 1.5, HEADS[heads][0]) if sinks else None
  want = decode_attention(*arrays, LENGTHS, sinks_N=sink, **settings)
  got = over(shards, *arrays, sinks=sink, **settings)
  assert got.dtype == want.dtype
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_a_long_sum_in_bfloat16_is_kept_in_float32():
  q, k, v = inputs("gqa", jnp.bfloat16)
  wide = [x.astype(jnp.float32) for x in (q, k, v)]
  got = over(8, q, k, v)
  assert got.dtype == jnp.bfloat16
  want = decode_attention(*wide, LENGTHS)
  np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=0, atol=2e-2)


def test_stale_entries_and_empty_slots_weigh_nothing():
  q, k, v = inputs("gqa")
  want = over(4, q, k, v)
  stale = np.arange(SIZE) >= LENGTHS[:, None]
  k = jnp.where(stale[:, None, None], np.nan, k)
  v = jnp.where(stale[:, None, :, None], np.nan, v)
  np.testing.assert_array_equal(over(4, q, k, v), want)
  np.testing.assert_array_equal(over(4, q, k, v, lengths=LENGTHS * 0), 0)


def test_what_travels_does_not_grow_with_the_cache():
  def moved(size: int) -> list[tuple[str, int]]:
    q, k, v = (jnp.zeros(s) for s in ((2, 4, 8), (2, 2, 8, size), (2, 2, size, 8)))
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("context",))
    specs = [PartitionSpec(*(None,) * n, "context") for n in (3, 2)]
    call = functools.partial(cut_decode_attention, axis="context")
    everywhere = PartitionSpec()
    run = jax.shard_map(
      call, mesh=mesh, in_specs=(everywhere, *specs, everywhere), out_specs=everywhere
    )
    compiled = jax.jit(run).lower(q, k, v, jnp.zeros(2, jnp.int32)).compile()
    return sorted((c.kind, c.result_bytes) for c in collectives(compiled.as_text(), mesh))

  found = moved(16)
  assert {kind for kind, _ in found} == {"all-reduce"}
  # A maximum, a sum, and a row of values for each of 2 slots and 4 heads, f32.
  assert sum(size for _, size in found) == 2 * 4 * (1 + 1 + 8) * 4
  assert moved(64) == found
