"""Masked reductions: hand-computed values, NaN in masked places, constants, segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.core import masked

X = jnp.array([[1.0, jnp.nan, 4.0], [7.0, jnp.inf, -jnp.inf]])
MASK = jnp.array([[1, 0, 1], [1, 0, 0]])
WHITEN = jax.jit(masked.masked_whiten)


@pytest.mark.parametrize(
  ("reduce", "expected"),
  [
    (masked.masked_sum, 12.0),
    (masked.masked_mean, 4.0),
    (masked.masked_var, 9.0),  # ((1-4)^2 + 0 + (7-4)^2) / 2
  ],
)
def test_value_and_gradient_read_only_true_entries(reduce, expected):
  value, grad = jax.jit(jax.value_and_grad(lambda x: reduce(x, MASK)))(X)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  assert np.all(np.isfinite(grad))
  assert np.all(np.asarray(grad)[np.asarray(MASK) == 0] == 0)


def test_reductions_along_an_axis():
  np.testing.assert_allclose(masked.masked_mean(X, MASK, axis=1), [2.5, 7.0])
  np.testing.assert_allclose(masked.masked_var(X, MASK, axis=1), [4.5, 0.0])
  np.testing.assert_allclose(masked.masked_sum(X, MASK, axis=0), [8.0, 0.0, 4.0])
  np.testing.assert_array_equal(masked.masked_count(MASK, axis=0), [2, 0, 1])
  assert masked.masked_mean(X, MASK, axis=1, keepdims=True).shape == (2, 1)


def test_mask_broadcasts_and_is_counted_once_per_entry():
  np.testing.assert_allclose(masked.masked_mean(jnp.ones((4, 2)), jnp.array([True, False])), 1.0)


def test_fill_before_keeps_nan_out_of_the_gradient_skyrl_1635():
  """The module's own example, both ways: the value is right each time, the gradient only once."""
  x, mask = jnp.array([2.0, jnp.nan]), jnp.array([1, 0])

  def after(x):
    return masked.masked_sum(jnp.exp(x), mask)

  def both(x):
    return masked.masked_sum(jnp.exp(masked.fill(x, mask)), mask)

  np.testing.assert_allclose([after(x), both(x)], np.exp(2.0), rtol=1e-6)
  assert np.isnan(jax.grad(after)(x)[1])
  assert jax.grad(both)(x)[1] == 0


@pytest.mark.parametrize(
  "reduce", [masked.masked_sum, masked.masked_mean, masked.masked_var], ids=lambda f: f.__name__
)
def test_all_masked_gives_exact_zero_openrlhf_583(reduce):
  value, grad = jax.jit(jax.value_and_grad(lambda x: reduce(x, jnp.zeros((2, 3)))))(X)
  assert value == 0
  assert np.all(np.asarray(grad) == 0)


def test_low_precision_is_reduced_in_float32():
  """bf16 cannot count past 256 in steps of 1."""
  ones = jnp.ones(1000, jnp.bfloat16)
  assert masked.masked_sum(ones, ones) == 1000
  assert masked.masked_sum(ones, ones).dtype == jnp.float32
  assert masked.masked_mean(jnp.array([1, 2], jnp.int32), jnp.ones(2)) == 1.5


def test_whiten_by_hand():
  """x = 1, 4, 7: mean 4, sample deviation 3."""
  np.testing.assert_allclose(
    masked.masked_whiten(X, MASK), [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], atol=1e-6
  )


@pytest.mark.parametrize(
  "x", [[1000.1, 1000.1001, 1000.1], [0.3, 0.1 + 0.2, 0.3], [0.7, jnp.nan, jnp.nan]]
)
def test_whiten_of_a_constant_is_exactly_zero_slime_1674(x):

  @jax.jit
  def whiten(x):
    return masked.masked_whiten(x, ~jnp.isnan(x))

  whitened, pullback = jax.vjp(whiten, jnp.array(x))
  assert np.all(np.asarray(whitened) == 0)
  assert np.all(np.asarray(pullback(jnp.ones(3))[0]) == 0)


@settings(max_examples=50, deadline=None)
@given(
  st.lists(st.integers(-1000, 1000).map(lambda i: i / 8), min_size=2, max_size=8),
  st.randoms(use_true_random=False),
)
def test_padding_and_order_leave_whitening_unchanged_areal_1346(values, random):
  """NaN padding anywhere and any order: every true entry is whitened by the true ones alone."""
  padded = values + [np.nan] * (8 - len(values))
  random.shuffle(padded)
  x = np.array(padded, np.float32)
  true = ~np.isnan(x)
  expected = np.zeros(8)
  if np.ptp(values) > 0:
    expected[true] = (x[true] - np.mean(values)) / (np.std(values, ddof=1) + 1e-6)
  np.testing.assert_allclose(WHITEN(x, true), expected, atol=1e-4)


def test_segments_by_hand():
  x = jnp.array([[1.0, 3.0, jnp.nan, 5.0], [2.0, 2.0, 2.0, 2.0]])
  mask = jnp.array([[1, 1, 0, 1], [1, 0, 0, 0]])
  ids = jnp.array([[0, 0, 0, 2], [1, 1, 2, 2]])
  means = masked.segment_mean(x, mask, ids, 3)
  np.testing.assert_allclose(means, [[2.0, 0.0, 5.0], [0.0, 2.0, 0.0]])
  np.testing.assert_allclose(masked.spread(means, ids), [[2, 2, 2, 5], [2, 2, 0, 0]])
  grad = jax.grad(lambda x: masked.segment_mean(x, mask, ids, 3).sum())(x)
  np.testing.assert_allclose(grad, [[0.5, 0.5, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
