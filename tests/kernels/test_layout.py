"""Which tokens a shard holds: the worked example, inverses, balance."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptjax.kernels.layout import LAYOUTS, Layout


@pytest.mark.parametrize(
  ("name", "want"),
  [
    ("contiguous", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("striped", [0, 2, 4, 6, 1, 3, 5, 7]),
    ("zigzag", [0, 1, 6, 7, 2, 3, 4, 5]),
  ],
)
def test_worked_example(name, want):
  np.testing.assert_array_equal(Layout(name, 2).index_of(np.arange(8), 8), want)


@given(st.sampled_from(LAYOUTS), st.integers(1, 9), st.integers(1, 70))
def test_places_and_indices_are_inverse(name, shards, length):
  layout = Layout(name, shards)
  padded = layout.padded(length)
  assert length <= padded < length + 2 * shards
  index = layout.index_of(np.arange(padded), padded)
  np.testing.assert_array_equal(np.sort(index), np.arange(padded))
  np.testing.assert_array_equal(layout.stored_at(index, padded), np.arange(padded))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shards", [1, 3, 4])
def test_store_and_restore(name, shards):
  x = jnp.arange(2 * 11 * 3).reshape(2, 11, 3) + 1
  layout = Layout(name, shards)
  stored = layout.store(x)
  np.testing.assert_array_equal(layout.restore(stored, 11), x)
  assert int((stored == 0).sum()) == (layout.padded(11) - 11) * 6


def causal_work(name: str, shards: int, length: int) -> np.ndarray:
  """Pairs of query and key that each shard computes."""
  index = Layout(name, shards).index_of(np.arange(length), length)
  return (index + 1).reshape(shards, -1).sum(axis=1)


def test_zigzag_is_balanced_exactly():
  assert len(set(causal_work("zigzag", 8, 1024))) == 1
  assert np.ptp(causal_work("striped", 8, 1024)) <= 1024
  contiguous = causal_work("contiguous", 8, 1024)
  assert contiguous.max() / contiguous.mean() > 1.8


@pytest.mark.parametrize(("name", "shards", "message"), [("zag", 2, "'zag'"), ("zigzag", 0, "0")])
def test_errors(name, shards, message):
  with pytest.raises(ValueError, match=message):
    Layout(name, shards)
