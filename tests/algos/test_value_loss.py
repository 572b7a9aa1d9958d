"""Value loss and explained variance against the golden cases."""

import jax
import numpy as np
import pytest

from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.algos.value_loss import explained_variance, value_loss
from ptjax.core.masked import fill, masked_mean


def op_value_loss(values, old_values, returns, mask, eps):
  weights = token_weights("token_mean", mask.sum(1))[:, None].astype(values.dtype)

  def loss(values):
    clean = [fill(x, mask) for x in (values, old_values, returns)]
    loss_tokens, aux = value_loss(*clean, clip=eps)
    return weighted_sum(loss_tokens, weights, mask), masked_mean(aux["clipped"], mask)

  (value, clip_frac), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(values)
  return {"loss": value, "grad": grad, "clip_frac": clip_frac}


def op_explained_variance(values, returns, mask):
  return {"explained_variance": jax.jit(explained_variance)(values, returns, mask)}


OPS = {"value_loss": op_value_loss, "explained_variance": op_explained_variance}


@pytest.mark.golden("value_loss")
def test_golden(case):
  case.check(OPS)


def test_explained_variance_of_equal_returns_is_nan_despite_rounding():
  """The float32 mean of a thousand 0.1 is not 0.1, so their computed variance is not 0."""
  returns = np.full(1000, 0.1, np.float32)
  values = np.linspace(0, 1, 1000, dtype=np.float32)
  assert np.isnan(explained_variance(values, returns, np.ones(1000)))
  assert np.isnan(explained_variance(values, values, np.arange(1000) < 1))


@pytest.mark.parametrize("clip", [0.0, -0.2])
def test_clip_must_be_positive(clip):
  with pytest.raises(ValueError, match="value clip must be > 0"):
    value_loss(np.zeros(1), np.zeros(1), np.zeros(1), clip=clip)
