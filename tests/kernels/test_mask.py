"""Which keys a query sees, by the worked example, the loops and the edges of the window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import ids, sees

from ptjax.kernels.mask import MaskSpec, masked_softmax, visible


def test_worked_example():
  segment, branch, position = ids((((2, (2, 1)),),), length=6)
  np.testing.assert_array_equal(segment, [[1, 1, 1, 1, 1, 0]])
  np.testing.assert_array_equal(branch, [[0, 0, 1, 1, 2, 0]])
  np.testing.assert_array_equal(position, [[0, 1, 2, 3, 2, 0]])
  want = [
    # p q a b c .
    [1, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [1, 1, 1, 0, 0, 0],
    [1, 1, 1, 1, 0, 0],
    [1, 1, 0, 0, 1, 0],
    [0, 0, 0, 0, 0, 0],
  ]
  np.testing.assert_array_equal(visible(MaskSpec(), segment, branch, position)[0], want)


@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_equals_the_definition(window):
  packed = ids()
  mask_BTS = np.asarray(visible(MaskSpec(window), *packed))
  for b, t, s in np.ndindex(mask_BTS.shape):
    assert mask_BTS[b, t, s] == sees(*packed[:, b], t, s, window), (b, t, s)


def test_window_counts_the_querys_own_key():
  packed = ids((((6, ()),),), length=6)
  mask_TS = visible(MaskSpec(3), *packed)[0]
  np.testing.assert_array_equal(mask_TS[5], [0, 0, 0, 1, 1, 1])
  np.testing.assert_array_equal(mask_TS[1], [1, 1, 0, 0, 0, 0])
  np.testing.assert_array_equal(visible(MaskSpec(1), *packed)[0], np.eye(6))


def test_window_does_not_count_other_branches():
  """The second branch is 4 slots from its prefix in the row, 1 position in its sequence."""
  packed = ids((((2, (3, 1)),),), length=6)
  np.testing.assert_array_equal(visible(MaskSpec(2), *packed)[0, 5], [0, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("window", [0, -1])
def test_window_errors(window):
  with pytest.raises(ValueError, match=f"window {window}"):
    MaskSpec(window)


def test_masked_softmax_by_hand():
  scores = jnp.log(jnp.asarray([[1.0, 3.0, 7.0], [2.0, 2.0, 1.0]]))
  mask = jnp.asarray([[True, True, False], [True, True, True]])
  want = [[0.25, 0.75, 0.0], [0.4, 0.4, 0.2]]
  np.testing.assert_allclose(masked_softmax(scores, mask), want, rtol=1e-6)


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_softmax_never_reads_masked_scores(hidden):
  scores = jnp.asarray([[0.0, hidden, 0.0], [hidden, hidden, hidden]])
  mask = jnp.asarray([[True, False, True], [False, False, False]])
  weights, pull = jax.vjp(lambda s: masked_softmax(s, mask), scores)
  np.testing.assert_array_equal(weights, [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]])
  (grad,) = pull(jnp.asarray([[1.0, 5.0, 0.0], [1.0, 2.0, 3.0]]))
  np.testing.assert_allclose(grad, [[0.25, 0.0, -0.25], [0.0, 0.0, 0.0]], atol=1e-7)


def test_masked_softmax_of_large_scores():
  weights = masked_softmax(jnp.asarray([1e4, 1e4 - 1.0, -1e4]), jnp.ones(3, bool))
  np.testing.assert_allclose(weights, [1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0], atol=1e-6)
