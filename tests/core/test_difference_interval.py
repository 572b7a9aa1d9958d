"""Newcombe's interval of a difference of pass rates."""

import numpy as np
import pytest

from ptjax.core.stats import difference_interval


@pytest.mark.parametrize(
  ("before", "after", "expected"),
  [  # Newcombe 1998, table II, method 10, of the first rate less the second
    ((48, 80), (56, 70), (0.0524, 0.3339)),
    ((3, 10), (9, 10), (0.1705, 0.8090)),
    ((0, 20), (10, 10), (0.6791, 1.0)),
  ],
)
def test_published_values(before, after, expected):
  np.testing.assert_allclose(difference_interval(before, after), expected, atol=1e-4)


def test_it_covers():
  rng = np.random.default_rng(0)
  covered = 0
  for _ in range(2000):
    before, after = (rng.binomial(50, 0.2), 50), (rng.binomial(60, 0.3), 60)
    low, high = difference_interval(before, after)
    covered += low <= 0.1 <= high
  assert covered / 2000 > 0.93
