"""GSPO by token, DPPO-TV, negative samples, entropy control, GDPO and GAE over turns, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.entropy import EntropyState, control_entropy
from ptjax.algos.gae import gae, gae_turns
from ptjax.algos.gdpo import gdpo
from ptjax.algos.negatives import drift_mask, sign_weights
from ptjax.algos.policy_loss import dppo_tv, gspo, gspo_token

SEGMENTS = {"segment_ids": jnp.array([[0, 0, 1, 1, 1]]), "num_segments": 2}
MASK = jnp.array([[1, 1, 1, 1, 0]])


def test_gspo_by_token_is_gspo_where_a_sequence_has_one_advantage():
  """Ratios e^0.25 (clipped) and e^0.05: same loss, same gradient."""
  old = jnp.array([[-1.0, -1.0, -1.0, -1.0, -1.0]])
  new = jnp.array([[-0.9, -0.6, -0.95, -0.95, -9.0]])
  advantages = jnp.array([[1.0, 1.0, -2.0, -2.0, 0.0]])

  def total(loss_fn, new):
    settings = {"mask": MASK, "clip_low": 0.2, "clip_high": 0.2} | SEGMENTS
    return jnp.sum(loss_fn(new, old, advantages, **settings)[0] * MASK)

  loss, grad = jax.value_and_grad(lambda x: total(gspo_token, x))(new)
  expected, expected_grad = jax.value_and_grad(lambda x: total(gspo, x))(new)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  np.testing.assert_allclose(grad, expected_grad, atol=1e-6)
  np.testing.assert_allclose(grad[0], [0, 0, 2 * np.exp(0.05), 2 * np.exp(0.05), 0], rtol=1e-6)


def test_gspo_by_token_carries_each_tokens_own_advantage():
  new = jnp.zeros((1, 5))
  advantages = jnp.array([[1.0, 3.0, -2.0, 0.5, 0.0]])

  def total(new):
    settings = {"mask": MASK, "clip_low": 0.2, "clip_high": 0.2} | SEGMENTS
    return jnp.sum(gspo_token(new, jnp.zeros((1, 5)), advantages, **settings)[0] * MASK)

  np.testing.assert_allclose(jax.grad(total)(new), -advantages, rtol=1e-6)


@pytest.mark.parametrize(
  ("p_new", "p_old", "advantage", "masked"),
  [
    (0.06, 0.01, 1.0, False),  # six times as likely, but 5% of the probability: ppo would clip
    (0.01, 0.06, -1.0, False),
    (0.95, 0.80, 1.0, True),  # a ratio of 1.19, which ppo lets pass
    (0.80, 0.95, -1.0, True),
    (0.95, 0.80, -1.0, False),  # moves the other way: the gradient brings it back
    (0.80, 0.95, 1.0, False),
  ],
)
def test_dppo_bounds_the_change_of_probability(p_new, p_old, advantage, masked):
  def loss(logp_new):
    return dppo_tv(logp_new, jnp.log(p_old), jnp.float32(advantage), clip_low=0.1, clip_high=0.1)

  (value, aux), grad = jax.value_and_grad(loss, has_aux=True)(jnp.log(jnp.float32(p_new)))
  expected = 0 if masked else -advantage * p_new / p_old
  np.testing.assert_allclose([value, grad], [expected, expected], rtol=1e-5)
  assert bool(aux["clip_high"] + aux["clip_low"]) == masked


def test_signs_have_weights_of_their_own():
  got = sign_weights(jnp.array([2.0, -1.0, 0.0]), 0.1, 3.0)
  np.testing.assert_allclose(got, [0.1, 3.0, 1.0], rtol=1e-6)


def test_negative_sequences_that_the_policy_has_left_are_masked():
  """Drifts of 0.15 and 0.5 nats a token; only the second, if negative, is beyond 0.2."""
  rollout = jnp.array([[-1.0, -1.0, -1.0, -1.0, jnp.nan]])
  new = jnp.array([[-1.1, -1.2, -1.8, -1.2, jnp.nan]])
  for sign, expected in ((-1.0, [1, 1, 0, 0, 1]), (1.0, [1, 1, 1, 1, 1])):
    advantages = jnp.array([[sign, sign, sign, sign, 0.0]])
    got = drift_mask(new, rollout, advantages, MASK, **SEGMENTS, limit=0.2)
    np.testing.assert_array_equal(got[0], expected)


def test_the_entropy_coefficient_follows_the_entropy():
  """Up below the target, down above it and never under 0 or over the limit; idle above."""
  settings = {"target": 0.3, "step": 0.25, "limit": 0.6}
  state = EntropyState(0.5)
  assert state.applied == 0.5
  trace = []
  for entropy in (0.2, 0.2, 0.3, 0.4, 0.4, 0.1):
    state = control_entropy(state, entropy, **settings)
    trace.append((round(state.coef, 6), round(state.applied, 6)))
  assert trace == [(0.6, 0.6), (0.6, 0.6), (0.35, 0.35), (0.1, 0.0), (0.0, 0.0), (0.25, 0.25)]
  with pytest.raises(ValueError, match="entropy must be a number >= 0, got nan"):
    control_entropy(state, float("nan"), **settings)


def test_gdpo_normalises_each_reward_by_itself():
  """Part 0: (1, 0), std 1/sqrt 2; part 1: (0, 8) and (3, 3), weights 1 and 0.5.

  Group 0: 1/sqrt 2 - 0.5/sqrt 2 = 0.5/sqrt 2 and its negative; group 1 is constant. The four
  values have mean 0 and squares 1/8 + 1/8, so std = sqrt(1/4 / 3).
  """
  parts = [[1.0, 0.0, 0.5, 0.5], [0.0, 8.0, 3.0, 3.0]]
  weights = [[1.0] * 4, [0.5] * 4]
  a = 0.5 / np.sqrt(2) / np.sqrt(1 / 12)
  np.testing.assert_allclose(gdpo(parts, weights, [0, 0, 1, 1]), [a, -a, 0, 0], rtol=1e-4)


def test_gdpo_tells_apart_what_a_sum_merges():
  """Rewards (1, 1) and (0, 0) against (1, 0) and (0, 0): GRPO gives both pairs 1/sqrt 2."""
  advantages = gdpo([[1, 0, 1, 0], [1, 0, 0, 0]], np.ones((2, 4)), [0, 0, 1, 1])
  np.testing.assert_allclose(advantages[0] / advantages[2], 2, rtol=1e-4)


def test_gdpo_leaves_a_missing_part_out_trl_5902():
  """The member without part 1 gets what part 0 alone says, the others compare themselves."""
  full = gdpo([[1, 0, 0], [None, 1, 0]], np.ones((2, 3)), [0, 0, 0])
  # Part 0: (2, -1, -1) / sqrt 3 (std 1/sqrt 3, mean 1/3); part 1: (-, 1, -1) / sqrt 2.
  raw = np.array([2, -1, -1]) / np.sqrt(3) + np.array([0, 1, -1]) / np.sqrt(2)
  np.testing.assert_allclose(full, raw / raw.std(ddof=1), rtol=1e-5)


def test_gdpo_needs_parts_and_their_weights():
  with pytest.raises(ValueError, match=r"\[parts, trajectories\] = \(0, 2\)"):
    gdpo([], np.zeros((0, 2)), [0, 0])
  with pytest.raises(ValueError, match=r"= \(1, 2\).*got \(1, 3\)"):
    gdpo([[1, 0]], np.ones((1, 3)), [0, 0])


def test_gae_over_turns_by_hand():
  """Turns of 2 and 1 actions around an observation; gamma 0.9, lambda 0.8.

  A_2 = 2 - 0.4 = 1.6;  A_1 = (0.1 + 0.2) + 0.9 * 0.4 - 0.5 + 0.72 * 1.6 = 1.312.
  """
  nan = np.nan
  mask = np.array([0, 1, 1, 0, 1, 0])
  rewards = np.array([nan, 0.1, 0.2, nan, 2.0, nan], np.float32)
  values = np.array([nan, 0.5, 7.0, nan, 0.4, nan], np.float32)
  turns = np.array([9, 0, 0, 9, 1, 9])
  advantages, returns = gae_turns(rewards, values, mask, turns, True, nan, 0.9, 0.8)
  np.testing.assert_allclose(advantages, [0, 1.312, 1.312, 0, 1.6, 0], rtol=1e-6)
  np.testing.assert_allclose(returns, [0, 1.812, 1.812, 0, 2.0, 0], rtol=1e-6)


@pytest.mark.parametrize("terminated", [True, False])
def test_turns_of_one_token_are_tokens(terminated):
  rng = np.random.default_rng(0)
  rewards, values = rng.normal(size=(2, 6)).astype(np.float32)
  mask, turns = np.array([1, 1, 0, 1, 1, 0]), np.array([0, 1, 0, 2, 3, 0])
  ends = terminated, 0.7, 0.9, 0.8
  got = gae_turns(rewards, values, mask, turns, *ends)
  for g, e in zip(got, gae(rewards, values, mask, *ends), strict=True):
    np.testing.assert_allclose(g, e, rtol=1e-6)
