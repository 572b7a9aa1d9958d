"""Attention over packed rows: the oracle against loops, the others against the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import HEADS, by_loops, ids, qkv

from ptjax.kernels.attention import IMPLEMENTATIONS, attention
from ptjax.kernels.blockwise import blockwise
from ptjax.kernels.mask import MaskSpec, visible
from ptjax.kernels.reference import reference

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
SEGMENT, BRANCH, POSITION = ids()


def attend(q, k, v, implementation="blockwise", window=None, packed=(SEGMENT, BRANCH, POSITION)):
  return _attend(q, k, v, *packed, implementation, window)


@functools.partial(jax.jit, static_argnums=(6, 7))
def _attend(q, k, v, segment, branch, position, implementation, window):
  return attention(
    q,
    k,
    v,
    mask_spec=MaskSpec(window),
    segment_ids_BT=segment,
    branch_ids_BT=branch,
    positions_BT=position,
    implementation=implementation,
  )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("heads", HEADS)
def test_equals_loops(heads, window, implementation):
  arrays = qkv(heads)
  want = by_loops(*arrays, SEGMENT, BRANCH, POSITION, window)
  np.testing.assert_allclose(attend(*arrays, implementation, window), want, rtol=0, atol=1e-5)


@functools.partial(jax.jit, static_argnums=3)
def out_and_grads(arrays, mask_BTS, bar, block):
  """The output and the three gradients; of the reference where there is no block."""
  attend = functools.partial(blockwise, block=block) if block else reference
  out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, mask_BTS), *arrays)
  return out, *pull(bar)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block", [5, 64])  # of 13 tokens: several blocks and a rest, and one
@pytest.mark.parametrize("heads", HEADS)
def test_blockwise_equals_reference(heads, block, dtype):
  arrays = [jnp.asarray(x, dtype) for x in qkv(heads)]
  bar = jnp.asarray(qkv(heads, seed=1)[0], dtype)
  for window in (None, 3):
    mask_BTS = visible(MaskSpec(window), SEGMENT, BRANCH, POSITION)
    outs = out_and_grads(arrays, mask_BTS, bar, block), out_and_grads(arrays, mask_BTS, bar, 0)
    for got, want, like in zip(*outs, [arrays[0], *arrays], strict=True):
      assert got.dtype == want.dtype == like.dtype
      got_wide, want_wide = got.astype(jnp.float32), want.astype(jnp.float32)
      atol = TOLERANCE[dtype] * max(1.0, float(jnp.max(jnp.abs(want_wide))))
      np.testing.assert_allclose(got_wide, want_wide, rtol=0, atol=atol)


def test_longer_than_one_default_block():
  packed = ids((((50, (40, 30)), (7, (3,))),), length=131)
  arrays = qkv("gqa", (1, 131))
  got, want = (attend(*arrays, name, packed=packed) for name in ("blockwise", "reference"))
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
  np.testing.assert_allclose(got, by_loops(*arrays, *packed), rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_gives_zeros_and_takes_no_gradient(implementation):
  out, pull = jax.vjp(functools.partial(attend, implementation=implementation), *qkv("gqa"))
  padding = SEGMENT == 0
  assert padding.any()
  np.testing.assert_array_equal(np.asarray(out)[padding], 0)
  for grad in pull(jnp.ones_like(out)):
    assert np.isfinite(grad).all()
    np.testing.assert_array_equal(np.asarray(grad)[padding], 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("poisoned", [("q",), ("k",), ("v",), ("q", "k", "v")])
def test_nan_in_padding_leaks_nowhere(poisoned, implementation):
  clean = dict(zip("qkv", qkv("gqa"), strict=True))
  padding = SEGMENT == 0
  dirty = {name: x.copy() for name, x in clean.items()}
  for name in poisoned:
    dirty[name][padding] = np.nan
  bar = np.where(padding[..., None, None], 0, qkv("gqa", seed=1)[0])
  results = []
  for arrays in (dirty, clean):
    call = functools.partial(attend, implementation=implementation)
    out, pull = jax.vjp(call, *arrays.values())
    results.append((out, *pull(jnp.asarray(bar))))
  for got, want in zip(*results, strict=True):
    np.testing.assert_array_equal(np.asarray(got)[~padding], np.asarray(want)[~padding])
    np.testing.assert_array_equal(np.asarray(got)[padding], 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_query_heads_share_adjacent_kv_heads(implementation):
  """Query heads 0 and 1 read kv head 0: repeat, not tile."""
  q, k, v = qkv("gqa")
  got = attend(q, k, v, implementation)
  repeated, tiled = (
    attend(q, expand(k), expand(v), implementation)
    for expand in (lambda x: jnp.repeat(x, 2, axis=2), lambda x: jnp.tile(x, (1, 1, 2, 1)))
  )
  np.testing.assert_allclose(got, repeated, rtol=0, atol=1e-6)
  assert np.abs(got - tiled).max() > 0.1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
  ("where", "moved"),
  [
    ((0, 1), (0, slice(1, 9))),  # a prefix token: the rest of its document
    ((0, 4), (0, slice(4, 7))),  # the first branch: itself
    ((0, 9), (0, slice(9, 11))),  # the second document
    ((1, 5), (1, slice(5, 6))),  # a branch of one token
  ],
)
def test_a_token_moves_only_those_that_see_it(where, moved, implementation):
  before = qkv("gqa")
  after = [x.copy() for x in before]
  for x in after:
    x[where] += 1.0
  old, new = (np.asarray(attend(*x, implementation)) for x in (before, after))
  expected = np.zeros(SEGMENT.shape, bool)
  expected[moved] = True
  np.testing.assert_array_equal(old[~expected], new[~expected])  # bitwise
  assert (old[expected] != new[expected]).any(axis=(-1, -2)).all()


def test_bfloat16_scores_are_float32():
  """Two keys whose scores differ by less than a bfloat16 step still weigh differently."""
  q = jnp.full((1, 2, 1, 64), 8.0, jnp.bfloat16)
  k = jnp.full((1, 2, 1, 64), 8.0, jnp.bfloat16).at[0, 1, 0, 0].set(8.25)
  v = jnp.asarray([[[[0.0] * 64], [[1.0] * 64]]], jnp.bfloat16)
  packed = ids((((2, ()),),), length=2)
  # Scores 512 and 512.25, where a bfloat16 step is 4.
  want = 1 / (1 + np.exp(-0.25))
  for implementation in IMPLEMENTATIONS:
    got = attend(q, k, v, implementation, packed=packed)[0, 1]
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=4e-3)
