"""Shares that follow what is learnt: score by hand, floors, quotas that still hold, resuming."""

import json
import math

import numpy as np
import pytest

from ptjax.experience.balance import BalanceConfig, Seen, balanced, score, see
from ptjax.experience.mixture import DomainConfig, Mixture

CONFIG = BalanceConfig()
NAMES = tuple(f"d{i}" for i in range(12))


def seen(*steps):
  state = Seen()
  for passed, scored in steps:
    state = see(state, passed, scored, CONFIG)
  return state


def test_score_by_hand():
  """After 2 of 4 and 4 of 4: fast 5.4 of 6.8, slow 5.9 of 7.8, each with half a pass of one."""
  fast, slow = 5.9 / 7.8, 6.4 / 8.8
  expected = 1 + 4 * (fast - slow) + 4 * slow * (1 - slow) + 1 / 3
  assert score(seen((2, 4), (0, 0), (4, 4)), CONFIG) == pytest.approx(expected)
  assert score(Seen(), CONFIG) == 1 + 1 + 1


def test_what_draws_a_domain():
  solved, half, hopeless = seen(*[(8, 8)] * 20), seen(*[(4, 8)] * 20), seen(*[(0, 8)] * 20)
  learning, few = seen(*[(0, 8)] * 20, *[(8, 8)] * 2), seen((4, 8))
  assert score(half, CONFIG) > 1.5 * max(score(solved, CONFIG), score(hopeless, CONFIG))
  assert score(learning, CONFIG) > score(half, CONFIG)
  assert score(few, CONFIG) > score(half, CONFIG)


def test_shares_sum_to_one_and_keep_their_floor():
  base = {"a": 0.7, "b": 0.2, "c": 0.1}
  states = {"a": seen(*[(8, 8)] * 20), "b": Seen(), "c": seen((4, 8))}
  shares = balanced(base, states, CONFIG)
  assert math.fsum(shares.values()) == pytest.approx(1)
  assert all(shares[name] >= 0.25 * base[name] for name in base)
  assert shares["a"] < 0.7
  assert shares["c"] > 0.1
  assert balanced(base, dict.fromkeys(base, Seen()), CONFIG) == pytest.approx(base)


def test_the_floor_binds_where_one_domain_outweighs_all():
  config = BalanceConfig(progress=2000.0, uncertainty=0.0, keep=0.25)
  states = {"a": seen(*[(0, 8)] * 20, *[(8, 8)] * 2), "b": seen(*[(8, 8)] * 20)}
  a, b = (score(states[name], config) for name in "ab")
  floor, by_score = 0.25 * 0.5, b / (a + b)
  assert by_score < floor
  assert balanced({"a": 0.5, "b": 0.5}, states, config)["b"] == floor + 0.75 * by_score


def mixture(balance=CONFIG):
  return Mixture([DomainConfig(name) for name in NAMES], balance)


def learn(source, steps, rng):
  """Plays steps whose results differ by domain; returns the draws and the sum of the shares."""
  drawn, due = [], dict.fromkeys(NAMES, 0.0)
  for _ in range(steps):
    shares = dict(source.shares)
    draws = source.draw(4)
    drawn += draws
    due = {name: due[name] + 4 * shares[name] for name in NAMES}
    rates = {d.domain: int(d.domain[1:]) / 11 for d in draws}
    source.observe({name: (int(rng.binomial(8, rate)), 8) for name, rate in rates.items()})
  return drawn, due


def test_quotas_hold_while_the_shares_move():
  """Four draws a step for twelve domains: without what is carried over, some would never come."""
  source = mixture()
  draws, due = learn(source, 200, np.random.default_rng(0))
  counts = {name: sum(d.domain == name for d in draws) for name in NAMES}
  assert max(abs(counts[name] - due[name]) for name in NAMES) < 2
  assert counts["d5"] > 1.2 * counts["d11"]
  assert min(counts.values()) > 0


def test_without_balance_nothing_moves():
  source, still = mixture(None), mixture(None)
  draws, _ = learn(source, 20, np.random.default_rng(0))
  assert draws == still.draw(80)


def test_resumes_with_what_was_seen():
  source = mixture()
  learn(source, 30, np.random.default_rng(0))
  again = mixture()
  again.restore(json.loads(json.dumps(source.state())))
  assert again.shares == source.shares
  rngs = np.random.default_rng(1), np.random.default_rng(1)
  assert learn(source, 20, rngs[0]) == learn(again, 20, rngs[1])


def test_a_changed_list_of_domains_keeps_what_was_seen():
  source = mixture()
  source.draw(4)
  source.observe({"d0": (8, 8)})
  fewer = Mixture([DomainConfig("d0"), DomainConfig("new")], CONFIG)
  fewer.restore(source.state())
  assert fewer.shares["d0"] < fewer.shares["new"]
  assert [d.index for d in fewer.draw(2) if d.domain == "new"] == [0]


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: BalanceConfig(keep=0), "balance.keep 0 must be in"),
    (lambda: BalanceConfig(progress=-1), "balance.progress -1 must be >= 0"),
    (lambda: BalanceConfig(fast=0.9, slow=0.9), "fast 0.9 and slow 0.9"),
    (lambda: see(Seen(), 3, 2, CONFIG), "3 passed of 2 episodes"),
  ],
)
def test_errors(call, message):
  with pytest.raises(ValueError, match=message):
    call()
