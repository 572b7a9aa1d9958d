"""KTO against a float64 NumPy reference, its gradient against the analytic one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.preference import kto, kto_reference_point

SETTINGS = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7}


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_value_and_gradient(dtype):
  rng = np.random.default_rng(0)
  score, ref = rng.normal(-20, 5, (2, 16))
  desirable, kl = rng.random(16) < 0.5, 0.8
  with jax.enable_x64(dtype is np.float64):

    def loss(score):
      losses, aux = kto(score, ref.astype(dtype), desirable, dtype(kl), **SETTINGS)
      return losses.sum(), (losses, aux)

    (_, (losses, aux)), grad = jax.value_and_grad(loss, has_aux=True)(score.astype(dtype))
  sign, weight = np.where(desirable, 1, -1), np.where(desirable, 1.2, 0.7)
  gain = 0.3 * (score - ref - kl)
  value = sigmoid(sign * gain)
  tolerance = {"rtol": 1e-9} if dtype is np.float64 else {"rtol": 2e-5, "atol": 2e-6}
  np.testing.assert_allclose(losses, weight * (1 - value), **tolerance)
  np.testing.assert_allclose(grad, -sign * weight * 0.3 * value * (1 - value), **tolerance)
  np.testing.assert_allclose(aux["rewards"], 0.3 * (score - ref), **tolerance)


def test_by_hand():
  """h - z = ln 3 and beta 1: sigmoid is 3/4, so good loses 1/4 and bad 3/4."""
  score = jnp.log(jnp.full(2, 3.0))
  losses, _ = kto(score, 0.0, jnp.array([True, False]), 0.0, beta=1.0)
  np.testing.assert_allclose(losses, [0.25, 0.75], rtol=1e-6)


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_finite_far_from_zero(far):
  loss, grad = jax.value_and_grad(lambda s: kto(s, 0.0, True, 0.0, beta=1.0)[0])(jnp.float32(far))
  np.testing.assert_allclose([loss, grad], [float(far < 0), 0], atol=1e-6)


def test_the_reference_point_is_a_clamped_mean_without_gradient():
  mask = jnp.array([True, True, False])
  gap = jnp.array([3.0, -1.0, jnp.nan])
  value, grad = jax.value_and_grad(lambda s: kto_reference_point(s, jnp.zeros(3), mask))(gap)
  assert value == 1.0
  np.testing.assert_array_equal(grad, 0)
  assert kto_reference_point(-gap, jnp.zeros(3), mask) == 0.0
