"""Faults that ring attention has had elsewhere, each with the least input that shows it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import ids, qkv
from jax.extend.core import jaxprs_in_params
from ring_cases import attend, context, whole

from ptjax.kernels import flash
from ptjax.kernels.blocks import UNBOUNDED, Ids
from ptjax.kernels.flash import How
from ptjax.kernels.layout import Layout
from ptjax.kernels.ring import Ring, needed_hops

LENGTH = 16
ONE = ids((((16, ()),),), LENGTH)
TWO = ids((((7, ()), (9, ())),), LENGTH)  # the second document begins inside a shard


@functools.cache
def runner(shards: int, layout: str, window: int | None = None):
  """A compiled `(q, k, v, packed, bar) -> (out, gradients)`."""
  where = context(shards, way="ring", layout_name=layout)
  return jax.jit(functools.partial(_run, functools.partial(attend, where), window))


@functools.cache
def oracle(window: int | None = None):
  return jax.jit(functools.partial(_run, whole, window))


def _run(attend, window, arrays, packed, bar):
  call = functools.partial(attend, packed=packed, window=window)
  out, pull = jax.vjp(call, *arrays)
  return out, *pull(bar)


def inputs(seed=0, heads="gqa", shape=(1, LENGTH)):
  return qkv(heads, shape, seed=seed), qkv(heads, shape, seed=seed + 1)[0]


def assert_oracle(run, arrays, packed, bar, window=None, atol=1e-5):
  for got, want in zip(run(arrays, packed, bar), oracle(window)(arrays, packed, bar), strict=True):
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def parts(cut: int, packed=ONE):
  """How, folded queries, and two sets of keys that are cut at `cut`."""
  (q, k, v), _ = inputs(heads="mha")
  q, k, v = (jnp.asarray(x).transpose(0, 2, 1, 3) for x in (q, k, v))
  tokens = Ids(*map(jnp.asarray, packed), jnp.arange(LENGTH)[None])
  first = k[:, :, :cut], v[:, :, :cut], Ids(*(x[:, :cut] for x in tokens))
  second = k[:, :, cut:], v[:, :, cut:], Ids(*(x[:, cut:] for x in tokens))
  return How(8**-0.5, block=4), q[:, :, None], tokens, (first, second), (k, v, tokens)


def fold(how, q, tokens, keys):
  state = flash.begin(q, 8)
  for k, v, ids_k in keys:
    state = flash.advance(how, q, k, v, tokens, ids_k, None, state)
  return state


def test_two_empty_parts_merge_to_an_empty_one():
  """-inf - -inf is nan: a query that saw nothing in the first part, nor in the second."""
  how, q, tokens, (first, second), _ = parts(8, np.zeros_like(ONE))
  state = fold(how, q, tokens, (first, second))
  out, lse = flash.finish(state, None, jnp.float32)
  np.testing.assert_array_equal(out, 0)
  np.testing.assert_array_equal(lse, 0)


def test_the_first_part_may_be_empty():
  """The later keys come first: most queries see none of them."""
  how, q, tokens, (first, second), everything = parts(8)
  got, want = (
    flash.finish(fold(how, q, tokens, keys), None, jnp.float32)
    for keys in ((second, first), (everything,))
  )
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def test_lse_is_a_natural_logarithm():
  how, q, tokens, _, everything = parts(8)
  _, lse = flash.finish(fold(how, q, tokens, (everything,)), None, jnp.float32)
  scores = jnp.einsum("BKTH,BKSH->BKTS", q[:, :, 0], everything[0]) * how.scale
  scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
  np.testing.assert_allclose(lse[:, :, 0], jax.nn.logsumexp(scores, -1), rtol=0, atol=1e-6)


def test_a_row_without_keys_gives_zeros_and_takes_no_gradient():
  """Not the mean of V, and no nan."""
  arrays, bar = inputs()
  for x in runner(4, "zigzag")(arrays, np.zeros_like(ONE), bar):
    np.testing.assert_array_equal(x, 0)


def test_nan_in_padding_leaks_nowhere():
  packed = ids((((7, ()),),), LENGTH)
  clean, bar = inputs()
  dirty = [np.where((packed[0] == 0)[..., None, None], np.nan, x) for x in clean]
  run = runner(4, "zigzag")
  for got, want in zip(run(dirty, packed, bar), run(clean, packed, bar), strict=True):
    np.testing.assert_array_equal(got, want)


def test_documents_packed_across_a_boundary_do_not_see_each_other():
  arrays, bar = inputs()
  moved = [x.copy() for x in arrays]
  for x in moved:
    x[0, 3] += 1.0
  old, new = (np.asarray(runner(4, "zigzag")(x, TWO, bar)[0]) for x in (arrays, moved))
  np.testing.assert_array_equal(old[0, 7:], new[0, 7:])
  assert (old[0, 3:7] != new[0, 3:7]).any(axis=(-1, -2)).all()


def test_a_later_shard_sees_the_document_that_began_before_it():
  """Segment ids of its own shard only would hide tokens 7 to 11 from token 12."""
  arrays, bar = inputs()
  assert_oracle(runner(4, "zigzag"), arrays, TWO, bar)


def test_a_window_counts_positions_of_the_whole_row():
  """With positions that begin anew in each shard, token 4 would see token 1 in a window of 3."""
  v = np.zeros((1, LENGTH, 2, 8), np.float32)
  for t in range(LENGTH):
    v[0, t, :, t % 8] = 1.0
  (q, k, _), bar = inputs()
  out = np.asarray(runner(4, "zigzag", 3)((q, k, v), ONE, bar)[0])
  for t in range(LENGTH):
    seen = {s % 8 for s in range(max(0, t - 2), t + 1)}
    assert set(np.flatnonzero(out[0, t, 0] > 0)) == seen, t


ODD = ids((((5, ()), (8, ())),), 13)


def test_an_odd_length_over_two_shards():
  arrays, bar = inputs(shape=(1, 13))
  assert_oracle(runner(2, "contiguous"), arrays, ODD, bar)


def test_the_backward_pass_reads_the_keys_of_its_own_hop():
  """At two shards: keys of hop 0 in hop 1 would leave dK, dV of shard 0 without shard 1's part."""
  arrays, bar = inputs(shape=(1, 13))
  bar[:, :7] = 0  # all gradient comes from the second shard's queries
  run = runner(2, "contiguous")
  _, _, dk, dv = run(arrays, ODD, bar)
  assert np.abs(dk[:, 5:7]).max() > 1e-2 < np.abs(dv[:, 5:7]).max()
  assert_oracle(run, arrays, ODD, bar)


def test_query_heads_share_adjacent_kv_heads():
  (q, k, v), bar = inputs()
  repeat, tile = (
    [f(x) for x in (k, v)]
    for f in (lambda x: np.repeat(x, 2, 2), lambda x: np.tile(x, (1, 1, 2, 1)))
  )
  out = runner(4, "zigzag")((q, k, v), ONE, bar)[0]
  np.testing.assert_allclose(out, oracle()((q, *repeat), ONE, bar)[0], rtol=0, atol=1e-5)
  assert np.abs(out - oracle()((q, *tile), ONE, bar)[0]).max() > 0.1


def test_bfloat16_error_does_not_grow_with_the_shards():
  """Parts are merged in float32; rounded to bfloat16 they would add an error a hop."""
  arrays, bar = inputs()
  narrow = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
  wide = [np.asarray(x, np.float32) for x in narrow]
  want = np.asarray(oracle()(wide, ONE, bar)[0])
  out = jax.jit(functools.partial(attend, context(8, way="ring"), packed=ONE))(*narrow)
  error = np.asarray(out, np.float32) - want
  assert np.sqrt(np.mean(error**2)) < 3e-3 * np.sqrt(np.mean(want**2))


def equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for sub in jaxprs_in_params(equation.params):
      yield from equations(sub)


def test_keys_travel_once_round_and_unrepeated():
  """R - 1 hops, with the heads that keys have: eight query heads share one."""
  where = context(8, way="ring")
  arrays, _ = inputs(heads="mqa")
  jaxpr = jax.make_jaxpr(functools.partial(attend, where, packed=ONE))(*arrays).jaxpr
  scans = [e for e in equations(jaxpr) if e.primitive.name == "scan"]
  rounds = [e for e in scans if any(True for _ in hops_in(e))]
  assert [e.params["length"] for e in rounds] == [7]
  for hop in hops_in(rounds[0]):
    assert hop.invars[0].aval.size <= 2 * 1 * 8  # tokens of a shard, one head, its width


def hops_in(equation):
  for inner in equations(equation.params["jaxpr"].jaxpr):
    if inner.primitive.name == "ppermute":
      yield inner


@pytest.mark.parametrize(
  ("layout", "packed", "window", "hops"),
  [
    ("contiguous", ONE, None, [1, 2, 3]),
    ("contiguous", ONE, 5, [1]),
    ("contiguous", ONE, 6, [1, 2]),
    ("zigzag", ONE, 3, [1, 3]),  # the neighbours of both chunks
    ("contiguous", ids((((4, ()), (4, ()), (4, ()), (4, ())),), LENGTH), None, []),
    # The second branch stands far from its prefix in the row, near to it in its sequence.
    ("contiguous", ids((((4, (10, 2)),),), LENGTH), 3, [1, 3]),
  ],
)
def test_hops_that_nobody_needs_are_not_made(layout, packed, window, hops):
  order = Layout(layout, 4)
  stored = [order.store(jnp.asarray(x)) for x in (*packed, np.arange(LENGTH)[None])]
  made, count = hops_of_four()(stored, UNBOUNDED if window is None else window)
  assert list(np.asarray(made)[: int(count)]) == hops


@functools.cache
def hops_of_four():
  mesh = context(4).mesh
  ring = Ring("context", 4, mesh.axis_names, How(1.0, block=2))
  rows, whole = jax.sharding.PartitionSpec(None, "context"), jax.sharding.PartitionSpec()

  def shard(ids, window):
    return needed_hops(ring, Ids(*ids), window, 2, 2)

  specs = {"in_specs": ([rows] * 4, whole), "out_specs": whole}
  return jax.jit(jax.shard_map(shard, mesh=mesh, check_vma=False, **specs))


def test_a_million_tokens_take_no_array_of_their_square():
  """Nor a limit on the length: splash's segment ids end at 524,288 tokens."""
  length = 1 << 20
  where = context(8, block=256)
  half = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  arrays = half((1, length, 4, 8)), half((1, length, 2, 8)), half((1, length, 2, 8))
  packed = [jax.ShapeDtypeStruct((1, length), jnp.int32)] * 3

  def loss(q, k, v, *packed):
    return jnp.sum(attend(where, q, k, v, packed=packed))

  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(*arrays, *packed).jaxpr
  largest = max(v.aval.size for e in equations(jaxpr) for v in e.outvars)
  assert largest == length * 4 * 8
