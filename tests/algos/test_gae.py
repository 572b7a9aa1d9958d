"""GAE over the action tokens: golden cases, observation spans, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.algos.gae import (
  discounted_returns,
  gae,
  gae_decoupled,
  gae_length_adaptive,
  place_outcome_reward,
)
from ptjax.core.masked import masked_whiten


def over_rows(fn, num_scalars):
  """fn over the rows of its five trajectory arguments, jitted; scalars are shared."""
  return jax.jit(jax.vmap(fn, in_axes=(0,) * 5 + (None,) * num_scalars))


WHITEN = jax.jit(masked_whiten)
GAE, DECOUPLED = over_rows(gae, 2), over_rows(gae_decoupled, 3)
LENGTH_ADAPTIVE = over_rows(gae_length_adaptive, 3)


def op_gae(rewards, values, mask, terminated, bootstrap, gamma, lam):
  advantages, returns = GAE(rewards, values, mask, terminated, bootstrap, gamma, lam)
  return {
    "advantages": advantages,
    "returns": returns,
    "advantages_whitened": WHITEN(advantages, mask),
  }


def op_gae_decoupled(rewards, values, mask, terminated, bootstrap, gamma, lam_policy, lam_value):
  out = DECOUPLED(rewards, values, mask, terminated, bootstrap, gamma, lam_policy, lam_value)
  return dict(zip(("advantages", "returns"), out, strict=True))


def op_gae_length_adaptive(rewards, values, mask, terminated, bootstrap, gamma, alpha, lam_value):
  out = LENGTH_ADAPTIVE(rewards, values, mask, terminated, bootstrap, gamma, alpha, lam_value)
  return dict(zip(("advantages", "returns", "lambdas"), out, strict=True))


def op_place_outcome_reward(scores, mask):
  return {"token_rewards": jax.jit(jax.vmap(place_outcome_reward))(scores, mask)}


OPS = {
  "gae": op_gae,
  "gae_whitened": op_gae,
  "gae_decoupled": op_gae_decoupled,
  "gae_length_adaptive": op_gae_length_adaptive,
  "place_outcome_reward": op_place_outcome_reward,
}


@pytest.mark.golden("gae")
def test_golden(case):
  case.check(OPS)


ONE = jax.jit(gae)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 7), min_size=1), st.booleans())
def test_observation_spans_are_skipped_verl_7300(action_positions, terminated):
  """Wherever NaN observations are interleaved, the actions get what they get side by side."""
  index = sorted(action_positions)
  n = len(index)
  rng = np.random.default_rng(n)
  rewards, values = rng.normal(size=(2, n)).astype(np.float32)
  spread_rewards, spread_values = np.full((2, 8), np.nan, np.float32)
  spread_rewards[index], spread_values[index] = rewards, values
  mask = np.zeros(8, bool)
  mask[index] = True
  packed = np.arange(8) < n
  side_by_side = np.zeros((2, 8), np.float32)
  side_by_side[:, :n] = rewards, values
  got = ONE(spread_rewards, spread_values, mask, terminated, 0.7, 0.9, 0.95)
  expected = ONE(*side_by_side, packed, terminated, 0.7, 0.9, 0.95)
  for g, e in zip(got, expected, strict=True):
    np.testing.assert_allclose(g[mask], e[packed], rtol=1e-6)
    assert np.all(np.asarray(g)[~mask] == 0)


def test_lambda_one_returns_are_discounted_returns():
  """1 + 0.5 (2 + 0.5 * 4) = 3 and so on; without values, A = G."""
  rewards, mask = jnp.array([1.0, 2.0, 9.0, 4.0]), jnp.array([1, 1, 0, 1])
  np.testing.assert_allclose(discounted_returns(rewards, mask, 0.5), [3.0, 4.0, 0.0, 4.0])
  values = jnp.array([0.3, -0.2, 5.0, 0.1])
  _, returns = gae(rewards, values, mask, True, 0.0, 0.5, 1.0)
  np.testing.assert_allclose(returns, [3.0, 4.0, 0.0, 4.0], rtol=1e-6)


def test_score_keeps_its_fraction_tunix_ppo():
  """A score of 0.7 added to an integer array would become 0, 1.9 would become 1."""
  rewards = place_outcome_reward(np.float32(0.7), np.array([1, 1, 0]))
  np.testing.assert_allclose(rewards, [0.0, 0.7, 0.0], rtol=1e-6)
  assert rewards.dtype == jnp.float32


def test_integer_rewards_and_values_are_floats_inside():
  advantages, _ = gae(np.array([0, 1]), np.array([0, 0]), np.array([1, 1]), True, 0, 0.5, 1.0)
  np.testing.assert_allclose(advantages, [0.5, 1.0])


def test_empty_trajectory_gets_nothing():
  assert np.all(np.asarray(place_outcome_reward(1.0, np.zeros(3))) == 0)
