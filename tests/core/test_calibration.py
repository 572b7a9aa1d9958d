"""Reliability table and expected calibration error, by hand and on calibrated draws."""

import math

import numpy as np
import pytest

from ptjax.core.calibration import expected_calibration_error, reliability


def test_by_hand():
  """Bins (0.5, 0.75] and (0.75, 1]: confidences 0.6, 0.7 | 0.9, 1.0, right 1, 0 | 1, 1."""
  table = reliability([0.6, 0.7, 0.9, 1.0], [True, False, True, True], bins=2, low=0.5)
  assert [(b.low, b.high, b.count) for b in table] == [(0.5, 0.75, 2), (0.75, 1.0, 2)]
  assert [b.accuracy for b in table] == [0.5, 1.0]
  assert [b.confidence for b in table] == pytest.approx([0.65, 0.95])
  assert expected_calibration_error(table) == pytest.approx(0.5 * 0.15 + 0.5 * 0.05)


def test_the_least_confidence_falls_into_the_first_bin():
  table = reliability([0.5, 0.75], [True, True], bins=2, low=0.5)
  assert [b.count for b in table] == [2, 0]
  assert math.isnan(table[1].accuracy)


def test_calibrated_predictions_have_a_small_error_and_overconfident_ones_a_large():
  rng = np.random.default_rng(0)
  confidence = rng.uniform(0.5, 1, 20_000)
  right = rng.random(20_000) < confidence
  good = expected_calibration_error(reliability(confidence, right, low=0.5))
  assert good < 0.02
  sure = expected_calibration_error(reliability(np.ones(20_000), right, low=0.5))
  assert sure == pytest.approx(0.25, abs=0.01)


def test_errors():
  assert math.isnan(expected_calibration_error(reliability([], [])))
  with pytest.raises(ValueError, match="2 confidences, 1 outcomes"):
    reliability([0.1, 0.2], [True])
  with pytest.raises(ValueError, match=r"must lie in \[0.5, 1\]"):
    reliability([0.4], [True], low=0.5)
