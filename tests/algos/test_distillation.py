"""The divergences against float64 NumPy, their gradients against the closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.distillation import forward_kl, reverse_kl


def softmax(z):
  p = np.exp(z - z.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_and_gradients(dtype):
  """d KL(s||t) / dz = s (log s - log t - KL); d KL(t||s) / dz = s - t."""
  student, teacher = np.random.default_rng(0).normal(0, 3, (2, 6, 11))
  s, t = softmax(student), softmax(teacher)
  ratio = np.log(s / t)
  reverse, forward = (s * ratio).sum(-1), -(t * ratio).sum(-1)
  tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype is np.float64 else {"rtol": 2e-5, "atol": 2e-6}
  with jax.enable_x64(dtype is np.float64):
    x, y = student.astype(dtype), teacher.astype(dtype)
    np.testing.assert_allclose(reverse_kl(x, y), reverse, **tolerance)
    np.testing.assert_allclose(forward_kl(x, y), forward, **tolerance)
    of = lambda kl: jax.grad(lambda x, y: kl(x, y).sum(), argnums=(0, 1))(x, y)  # noqa: E731
    (reverse_grad, none), (forward_grad, none2) = of(reverse_kl), of(forward_kl)
  np.testing.assert_allclose(reverse_grad, s * (ratio - reverse[:, None]), **tolerance)
  np.testing.assert_allclose(forward_grad, s - t, **tolerance)
  for grad in (none, none2):
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize("kl", [reverse_kl, forward_kl])
def test_equal_distributions_and_missing_tokens(kl):
  z = jnp.asarray([1.0, -2.0, -jnp.inf])
  value, grad = jax.value_and_grad(kl)(z, z + 5)
  np.testing.assert_allclose(value, 0, atol=1e-6)
  np.testing.assert_allclose(grad, 0, atol=1e-6)


def test_the_directions_differ_where_the_student_lacks_a_token():
  """A student without a token of the teacher: only the forward divergence is infinite."""
  student, teacher = jnp.asarray([0.0, -jnp.inf]), jnp.zeros(2)
  np.testing.assert_allclose(reverse_kl(student, teacher), np.log(2), rtol=1e-6)
  assert np.isinf(forward_kl(student, teacher))


def test_bfloat16_logits_are_summed_in_float32():
  z = jnp.asarray(np.random.default_rng(1).normal(0, 3, (2, 512)), jnp.bfloat16)
  value = reverse_kl(z[0], z[1])
  assert value.dtype == jnp.float32
  s, t = softmax(np.asarray(z[0], np.float64)), softmax(np.asarray(z[1], np.float64))
  np.testing.assert_allclose(value, (s * np.log(s / t)).sum(), rtol=1e-5)
