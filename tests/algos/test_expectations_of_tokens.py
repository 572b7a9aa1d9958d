"""Expected gradients by token: GAE in all its forms, and the KL in the loss and the reward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumerable_policy import (
  LENGTH_X,
  MASK_XT,
  NUM,
  OTHER_CV,
  REWARD_X,
  STATE_XT,
  STOPPED_X,
  THETA_CV,
  VALUE_C,
  expected_gradient,
  grad_mean,
  logp_answers,
  logp_tokens,
  probs,
  score_XCV,
  visits,
)

from ptjax.algos.gae import discounted_returns, gae, gae_length_adaptive, gae_turns
from ptjax.algos.kl import KL_ESTIMATORS, kl_in_reward
from ptjax.train.objectives import PolicyObjective

REINFORCE = PolicyObjective(loss="reinforce")
BETA = 0.7


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def same(got, expected, atol=1e-10):
  np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
  assert np.abs(np.asarray(expected)).max() > 1e-3, "an expectation of 0 shows nothing"


REWARDS_XT = (np.arange(3) == LENGTH_X[:, None] - 1) * REWARD_X[:, None]


def true_values():
  """[C]: what the policy earns from each state on."""
  p_X = np.asarray(jnp.exp(logp_answers(THETA_CV)))
  mass_C, earned_C = np.zeros(7), np.zeros(7)
  np.add.at(mass_C, STATE_XT[MASK_XT], np.repeat(p_X, LENGTH_X))
  np.add.at(earned_C, STATE_XT[MASK_XT], np.repeat(p_X * REWARD_X, LENGTH_X))
  return earned_C / mass_C


def gae_gradient(lam, value_C, rewards_XT=REWARDS_XT, over_X=None, after_X=None, fn=gae, extra=()):
  over_X = np.ones(NUM, bool) if over_X is None else over_X
  after_X = np.zeros(NUM) if after_X is None else after_X
  axes = (0, 0, 0, *(0 for _ in extra), 0, 0, None, None)
  values = (rewards_XT, value_C[STATE_XT], MASK_XT, *extra, over_X, after_X, 1.0, lam)
  advantages_XT, _ = jax.vmap(fn, axes)(*values)
  return expected_gradient(REINFORCE, probs(THETA_CV), np.asarray(advantages_XT))


def test_gae_with_lambda_one_is_unbiased_whatever_the_critic():
  same(gae_gradient(1.0, VALUE_C), -grad_mean(REWARD_X))


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_gae_is_unbiased_under_a_perfect_critic(lam):
  same(gae_gradient(lam, true_values()), -grad_mean(REWARD_X))
  # And biased under another one.
  assert np.abs(gae_gradient(lam, VALUE_C) + grad_mean(REWARD_X)).max() > 1e-3


def test_gae_over_turns_is_unbiased_with_lambda_one():
  """The first two tokens are one turn, the third another."""
  turns_XT = np.broadcast_to([0, 0, 1], (NUM, 3))
  got = gae_gradient(1.0, VALUE_C, fn=gae_turns, extra=(turns_XT,))
  same(got, -grad_mean(REWARD_X))


def test_gae_of_cut_answers_climbs_what_would_have_come():
  """Answers that did not stop have no reward yet; bootstrapped from the truth, nothing is lost."""
  worth_X = np.linspace(-1, 2, NUM)  # what the state after each answer is worth
  rewards_XT = np.where(STOPPED_X[:, None], REWARDS_XT, 0)
  got = gae_gradient(1.0, VALUE_C, rewards_XT, STOPPED_X, worth_X)
  same(got, -grad_mean(np.where(STOPPED_X, REWARD_X, worth_X)))
  # To score them 0, as if they had ended, climbs something else.
  wrong = gae_gradient(1.0, VALUE_C, rewards_XT)
  assert np.abs(wrong - got).max() > 1e-3


def test_length_adaptive_lambda_by_its_definition():
  """lam_n depends on the length that the answer will have: biased, by exactly this much.

  A_t = sum_{k >= t} lam_n^{k - t} delta_k, lam_n = max(0, 1 - 1 / (alpha n)).
  """
  alpha = 0.6
  value_XT = VALUE_C[STATE_XT]
  after_XT = np.where(np.arange(3) < LENGTH_X[:, None] - 1, np.roll(value_XT, -1, 1), 0)
  delta_XT = np.where(MASK_XT, REWARDS_XT + after_XT - value_XT, 0)
  lam_X = np.maximum(0, 1 - 1 / (alpha * LENGTH_X))
  powers = np.arange(3) - np.arange(3)[:, None]  # k - t
  decay_XTT = np.where(powers >= 0, lam_X[:, None, None] ** np.maximum(powers, 0), 0)
  advantage_XT = np.einsum("xtk,xk->xt", decay_XTT, delta_XT)
  weight_XT = probs(THETA_CV)[:, None] * np.where(MASK_XT, advantage_XT, 0)
  expected = jax.grad(lambda theta: -jnp.sum(weight_XT * logp_tokens(theta)))(THETA_CV)

  adaptive = functools.partial(gae_length_adaptive, lam_value=1.0)
  fn = lambda *args: adaptive(*args[:-1], alpha)[:2]  # noqa: E731
  same(gae_gradient(1.0, VALUE_C, fn=fn), expected)
  assert len(set(lam_X.round(6).tolist())) == 3


def kl_of_answers(theta_CV):
  """KL(policy || reference) over whole answers."""
  p_X = probs(theta_CV)
  return p_X @ (logp_answers(theta_CV) - logp_answers(OTHER_CV))


def with_kl_in_reward(estimator):
  """(expected gradient through the returns of each token, kl [X, T])."""
  shape = (0, 0, 0, 0, None, None)
  rewards_XT, kl_XT = jax.vmap(kl_in_reward, shape)(
    REWARD_X, logp_tokens(THETA_CV), logp_tokens(OTHER_CV), MASK_XT, BETA, estimator
  )
  returns_XT = jax.vmap(discounted_returns, (0, 0, None))(rewards_XT, MASK_XT, 1.0)
  return expected_gradient(REINFORCE, probs(THETA_CV), np.asarray(returns_XT)), kl_XT


def test_k1_in_the_reward_is_the_kl_of_whole_answers():
  """-grad (E[r] - beta KL): by token, and as one sum an answer, as group estimators take it."""
  expected = -grad_mean(REWARD_X) + BETA * jax.grad(kl_of_answers)(THETA_CV)
  got, kl_XT = with_kl_in_reward("k1")
  same(got, expected)
  by_answer = REWARD_X - BETA * np.asarray(kl_XT.sum(1))
  same(expected_gradient(REINFORCE, probs(THETA_CV), by_answer), expected)
  same(gae_gradient(1.0, VALUE_C, REWARDS_XT - BETA * np.asarray(kl_XT)), expected)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_are_no_kl(estimator):
  """The reward carries no gradient of its own: -grad E[r] + beta (grad E[k] - E[grad k])."""

  def mean_k(theta_CV, weights_X):
    k = KL_ESTIMATORS[estimator]
    gap_XT = logp_tokens(theta_CV) - logp_tokens(OTHER_CV)
    return weights_X @ jnp.sum(jnp.where(MASK_XT, k(gap_XT), 0), axis=1)

  whole = jax.grad(lambda theta: mean_k(theta, probs(theta)))(THETA_CV)
  own = jax.grad(mean_k)(THETA_CV, probs(THETA_CV))
  same(with_kl_in_reward(estimator)[0], -grad_mean(REWARD_X) + BETA * (whole - own))
  assert np.abs(whole - own - jax.grad(kl_of_answers)(THETA_CV)).max() > 1e-3


def kl_of_states(theta_CV, direction):
  """sum of visits * KL between the next-token distributions; the visits are held fixed."""
  log_p, log_q = jax.nn.log_softmax(theta_CV), jax.nn.log_softmax(OTHER_CV)
  gap_CV = log_p - log_q
  by_state_C = jnp.sum(jnp.exp(log_p if direction == "forward" else log_q) * gap_CV, axis=1)
  return visits(THETA_CV) @ (by_state_C if direction == "forward" else -by_state_C)


@pytest.mark.parametrize(("estimator", "direction"), [(None, "forward"), ("k3", "reverse")])
def test_the_kl_in_the_loss_is_that_of_each_state(estimator, direction):
  """The default k2: KL(policy || reference) of the next token at the states that are visited; k3:
  KL(reference || policy). What the policy could do to visit other states is no part of either."""
  objective = PolicyObjective(loss="reinforce", kl_coef=BETA, kl_estimator=estimator)
  got = expected_gradient(objective, probs(THETA_CV), REWARD_X)
  slope = jax.grad(kl_of_states)(THETA_CV, direction)
  same(got, -grad_mean(REWARD_X) + BETA * slope)


def test_k1_in_the_loss_would_be_noise():
  """Its gradient is the mean score, 0: why the configuration refuses it."""
  mean_score = jnp.einsum("x,xcv->cv", probs(THETA_CV), score_XCV())
  np.testing.assert_allclose(mean_score, 0, atol=1e-12)
