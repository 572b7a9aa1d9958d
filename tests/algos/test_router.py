"""The routers' losses and the correction of their choice, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.router import balance_loss, corrected, load_statistics, z_loss


def test_an_even_load_costs_one_a_layer():
  counts_LE, probs_LE = jnp.full((3, 4), 6.0), jnp.full((3, 4), 3.0)
  assert float(balance_loss(counts_LE, probs_LE, jnp.asarray(12.0))) == pytest.approx(3.0)


def test_balance_loss_by_hand():
  """4 tokens, 1 expert each of 2: f = (3/4, 1/4), P = (2.4/4, 1.6/4); 2 (0.45 + 0.1) = 1.1."""
  counts_LE, probs_LE = jnp.asarray([[3.0, 1.0]]), jnp.asarray([[2.4, 1.6]])
  assert float(balance_loss(counts_LE, probs_LE, jnp.asarray(4.0))) == pytest.approx(1.1)
  by_probs = jax.grad(balance_loss, argnums=1)(counts_LE, probs_LE, jnp.asarray(4.0))
  np.testing.assert_allclose(by_probs, [[2 * 0.75 / 4, 2 * 0.25 / 4]])
  by_counts = jax.grad(balance_loss, argnums=0)(counts_LE, probs_LE, jnp.asarray(4.0))
  np.testing.assert_array_equal(by_counts, [[0.0, 0.0]])


def test_micro_batches_add_up():
  counts_LE = jnp.asarray([[3.0, 1.0]])
  halves = [jnp.asarray([[1.5, 0.5]]), jnp.asarray([[0.9, 1.1]])]
  parts = sum(balance_loss(counts_LE, probs_LE, jnp.asarray(4.0)) for probs_LE in halves)
  assert float(parts) == pytest.approx(1.1)


def test_z_loss_by_hand():
  """Two layers, sums of squares 8 and 4, over 4 tokens."""
  assert float(z_loss(jnp.asarray([8.0, 4.0]), jnp.asarray(4.0))) == 3.0


def test_without_tokens_nothing_is_lost():
  zeros_LE = jnp.zeros((1, 2))
  assert float(balance_loss(zeros_LE, zeros_LE, jnp.asarray(0.0))) == 0.0
  assert float(z_loss(jnp.zeros(1), jnp.asarray(0.0))) == 0.0


def test_the_correction_moves_against_the_load():
  counts_LE = jnp.asarray([[5.0, 2.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
  got = corrected(jnp.full((2, 4), 0.5), counts_LE, 0.01)
  np.testing.assert_allclose(got, [[0.49, 0.51, 0.51, 0.5], [0.5, 0.5, 0.5, 0.5]], rtol=1e-6)


def test_statistics_of_the_load():
  got = load_statistics(jnp.asarray([[2.0, 2.0], [4.0, 0.0], [3.0, 1.0]]))
  np.testing.assert_allclose(got["entropy"], [np.log(2), 0.0, 0.5623351], rtol=1e-6)
  np.testing.assert_allclose(got["max_share"], [0.5, 1.0, 0.75])
