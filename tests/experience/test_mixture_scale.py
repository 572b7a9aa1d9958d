"""Weights that the run itself raises or pauses."""

import numpy as np
import pytest

from ptjax.experience.balance import BalanceConfig
from ptjax.experience.mixture import DomainConfig, Mixture


def mixture(*weights, balance=None):
  return Mixture([DomainConfig(f"d{i}", weight) for i, weight in enumerate(weights)], balance)


def names(source, count):
  return [draw.domain for draw in source.draw(count)]


def test_a_raised_weight():
  source = mixture(1, 1)
  source.draw(10)
  source.scale("d0", 3.0)
  assert source.shares == {"d0": 0.75, "d1": 0.25}
  assert source.weights == {"d0": 3.0, "d1": 1.0}
  assert names(source, 40).count("d0") == pytest.approx(30, abs=1)


@pytest.mark.parametrize("balance", [None, BalanceConfig()])
def test_a_paused_domain_is_not_drawn(balance):
  source = mixture(1, 2, 1, balance=balance)
  source.draw(7)
  source.scale("d1", 0.0)
  source.observe({"d0": (1, 4)})
  assert "d1" not in names(source, 40)
  assert source.paused == {"d1"}
  source.scale("d0", 0.0)
  with pytest.raises(ValueError, match="'d2' is the last one"):
    source.scale("d2", 0.0)


def test_it_resumes():
  first = mixture(1, 2, 1)
  first.draw(5)
  first.scale("d1", 0.0)
  first.scale("d2", 2.0)
  first.draw(3)
  second = mixture(1, 2, 1)
  second.restore(first.state())
  assert second.draw(20) == first.draw(20)


def test_a_changed_weight_takes_a_pause_back():
  first = mixture(1, 2, 1)
  first.scale("d1", 0.0)
  first.scale("d2", 2.0)
  second = mixture(1, 3, 1)
  second.restore(first.state())
  assert second.weights == {"d0": 1.0, "d1": 3.0, "d2": 2.0}


def test_none_left_is_told():
  first = mixture(1, 2)
  first.scale("d0", 0.0)
  second = mixture(1)
  with pytest.raises(ValueError, match=r"\['d0'\], is paused"):
    second.restore(first.state())


@pytest.mark.parametrize("balance", [None, BalanceConfig()])
def test_a_hundred_domains_have_their_quotas(balance):
  """Two hundred steps of twenty tasks; without balance each domain sets 40, to within one."""
  source = mixture(*[1.0] * 100, balance=balance)
  rates = np.random.default_rng(0).uniform(0, 1, 100)
  due = np.zeros(100)
  for _ in range(200):
    due += 20 * np.asarray(list(source.shares.values()))
    drawn = names(source, 20)
    source.observe({n: (round(8 * rates[int(n[1:])]), 8) for n in set(drawn)})
  numbers = np.asarray(list(source.drawn.values()))
  assert numbers.sum() == 4000
  assert np.abs(numbers - due).max() < (1 + 1e-9 if balance is None else 2)
  assert numbers.min() >= 20
