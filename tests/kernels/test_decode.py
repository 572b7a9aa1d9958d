"""Attention of one token over a cache, against the whole row."""

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import HEADS, by_loops, ids, qkv

from ptjax.kernels.decode import decode_attention
from ptjax.kernels.mask import MaskSpec, visible
from ptjax.kernels.reference import reference

LENGTHS = np.asarray([1, 5, 13, 8], np.int32)


def attend(q, k, v, dtype=jnp.float32):
  """The kernel over a cache made of rows [R, T, K, H]."""
  cache = np.moveaxis(k, 1, 3), np.moveaxis(v, 1, 2)
  return decode_attention(*(jnp.asarray(x, dtype) for x in (last(q), *cache)), LENGTHS)


def last(x_BTNH):
  """The query of each slot's newest token."""
  return x_BTNH[np.arange(len(LENGTHS)), LENGTHS - 1]


@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_last_query_of_the_row(heads):
  q, k, v = qkv(heads)
  got = attend(q, k, v)
  packed = ids(tuple(((int(n), ()),) for n in LENGTHS))
  whole = reference(q, k, v, visible(MaskSpec(), *packed))
  np.testing.assert_allclose(got, last(np.asarray(whole)), rtol=0, atol=1e-6)
  np.testing.assert_allclose(got, last(by_loops(q, k, v, *packed)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_stale_tail_weighs_nothing(poison):
  """Keys may be anything there; values are finite, since the engine clears a slot it fills."""
  q, k, v = qkv("gqa")
  want = attend(q, k, v)
  stale_BT = np.arange(k.shape[1]) >= LENGTHS[:, None]
  k[stale_BT], v[stale_BT] = poison, 1e30
  got = attend(q, k, v)
  np.testing.assert_array_equal(got, want)


def test_bfloat16_cache():
  q, k, v = qkv("gqa")
  want = attend(q, k, v)
  got = attend(q, k, v, dtype=jnp.bfloat16)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=0, atol=2e-2)
