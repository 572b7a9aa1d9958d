"""Effective sample size by hand, merged over parts, and against the function of `algos`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.correction import effective_sample_size
from ptjax.core.effective_size import EffectiveSize
from ptjax.core.metrics import merge, summarize


def share(*parts):
  sizes = [EffectiveSize.of(jnp.asarray(w), jnp.asarray(m, bool)) for w, m in parts]
  return summarize(merge(*({"ess": size} for size in sizes)))["ess"]


def test_by_hand():
  assert share(([2.0, 2.0, 2.0], [1, 1, 1])) == 1
  assert share(([5.0, 0.0, 0.0, 0.0], [1, 1, 1, 1])) == pytest.approx(1 / 4)
  # (1 + 3)^2 / (1 + 9) = 1.6 of 2
  assert share(([1.0, np.nan, 3.0], [1, 0, 1])) == pytest.approx(0.8)
  assert share(([0.0, 0.0], [1, 1])) == 0
  assert np.isnan(share(([1.0], [0])))


def test_parts_merge_to_the_whole():
  """A micro-batch whose weights are all large says nothing by itself: 1 and 1 make 36/(2 20)."""
  assert share(([2.0], [1]), ([4.0], [1])) == pytest.approx(36 / 40)
  weights = jax.random.exponential(jax.random.key(0), (4, 8))
  mask = jax.random.bernoulli(jax.random.key(1), 0.6, (4, 8))
  parts = [(weights[i : i + 2], mask[i : i + 2]) for i in (0, 2)]
  assert share(*parts) == pytest.approx(float(effective_sample_size(weights, mask)[1]), rel=1e-5)
