"""The expected gradient of every objective, to the last digit, on a policy that can be enumerated.

Where an estimator is unbiased the gradient is that of the expected reward; where it is biased by
construction the test states the function whose gradient it is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumerable_policy import (
  BINARY_X,
  LENGTH_X,
  NUM,
  OTHER_CV,
  REWARD_X,
  STATE_XT,
  THETA_CV,
  TOKEN_XT,
  expected_gradient,
  grad_mean,
  groups,
  logp_tokens,
  probs,
  score_XCV,
  visits,
)

from ptjax.algos.advantages import ADVANTAGES, reinforce_pp, rloo
from ptjax.algos.aggregate import token_weights
from ptjax.algos.gdpo import gdpo
from ptjax.core.masked import STD_EPS
from ptjax.train.objectives import PolicyObjective
from ptjax.train.policy_objective import CORRECTION_DEFAULTS, CorrectionConfig

REINFORCE = PolicyObjective(loss="reinforce")
LOSSES = {
  "ppo": PolicyObjective(),
  "clip_higher_dual": PolicyObjective(clip_high=0.28, dual_clip=3.0),
  "gspo": PolicyObjective(loss="gspo"),
  "gspo_token": PolicyObjective(loss="gspo_token"),
  "cispo": PolicyObjective(loss="cispo"),
  "dppo_tv": PolicyObjective(loss="dppo_tv"),
  "reinforce": REINFORCE,
}
BASELINE = 0.37


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def same(got, expected, atol=1e-10):
  np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
  assert np.abs(np.asarray(expected)).max() > 1e-3, "an expectation of 0 shows nothing"


@pytest.mark.parametrize("loss", LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(loss):
  """Minimising it climbs E[r]; the baseline drops out."""
  got = expected_gradient(LOSSES[loss], probs(THETA_CV), REWARD_X - BASELINE)
  same(got, -grad_mean(REWARD_X))


@pytest.mark.parametrize("kind", CORRECTION_DEFAULTS)
def test_a_correction_changes_nothing_on_policy(kind):
  objective = PolicyObjective(correction=CorrectionConfig(kind))
  same(expected_gradient(objective, probs(THETA_CV), REWARD_X - BASELINE), -grad_mean(REWARD_X))


def group_gradient(estimator, reward_X, size):
  """Expected gradient of a batch of one group, each member weighing 1 / size."""
  rows_NG, p_N = groups(size)
  if estimator in ("grpo_batch_std", "reinforce_pp_baseline"):  # their statistics are the batch's
    members = zip(reward_X[rows_NG], LENGTH_X[rows_NG], strict=True)
    values = [ADVANTAGES[estimator](r, np.zeros(size, int), None, n) for r, n in members]
    advantage_N = np.concatenate(values)
  else:
    ids = np.repeat(np.arange(len(rows_NG)), size)
    advantage_N = ADVANTAGES[estimator](reward_X[rows_NG].ravel(), ids)
  weight_N = np.repeat(p_N / size, size)
  return expected_gradient(REINFORCE, weight_N, advantage_N, rows_N=rows_NG.ravel())


def pair_gradient(sign_XX):
  """-sum over pairs of p p' s(x, x') grad log p(x), for an antisymmetric s."""
  p_X = probs(THETA_CV)
  return -jnp.einsum("x,y,xy,xcv->cv", p_X, p_X, jnp.asarray(sign_XX), score_XCV())


@pytest.mark.parametrize("size", [2, 3])
def test_rloo_is_unbiased(size):
  same(group_gradient("rloo", REWARD_X, size), -grad_mean(REWARD_X))


@pytest.mark.parametrize("size", [2, 3])
def test_dr_grpo_is_unbiased_but_for_a_constant(size):
  """The member's own reward is in its baseline, which costs the factor (n - 1) / n."""
  same(group_gradient("dr_grpo", REWARD_X, size), -(size - 1) / size * grad_mean(REWARD_X))


@pytest.mark.parametrize("size", [2, 3])
def test_maxrl_climbs_a_truncated_log_likelihood(size):
  """With p the pass rate: grad of -sum_{k<n} (1 - p)^k / k, which tends to log p."""
  p = float(probs(THETA_CV) @ BINARY_X)
  factor = sum((1 - p) ** (k - 1) for k in range(1, size))
  same(group_gradient("maxrl", BINARY_X, size), -factor * grad_mean(BINARY_X))


def normalised(gap_XX):
  """(gap / 2) / (|gap| / sqrt 2 + eps): a pair less its mean, over its deviation; +-1/sqrt 2."""
  return gap_XX / 2 / (np.abs(gap_XX) / np.sqrt(2) + STD_EPS)


@pytest.mark.parametrize("estimator", ["grpo", "grpo_batch_std"])
def test_grpo_of_pairs_climbs_the_rate_of_wins(estimator):
  """The advantage is +-1/sqrt 2 however far apart the rewards are: the size of a win is lost."""
  gap_XX = REWARD_X[:, None] - REWARD_X
  same(group_gradient(estimator, REWARD_X, 2), pair_gradient(normalised(gap_XX)))
  wins = pair_gradient(np.sign(gap_XX)) / np.sqrt(2)
  same(group_gradient(estimator, REWARD_X, 2), wins, atol=1e-4)


def test_grpo_weighs_a_binary_task_by_its_difficulty():
  """Of three, one passes (advantages 2/3, -1/3, -1/3) or two (1/3, 1/3, -2/3), std sqrt(1/3).

  A pass meets 0 or 1 other passes, a fail 1 or 2; each moves p by its advantage.
  """
  p = float(probs(THETA_CV) @ BINARY_X)
  none, one, both = (1 - p) ** 2, 2 * p * (1 - p), p**2
  raw = (2 / 3 * none + 1 / 3 * one) + (1 / 3 * one + 2 / 3 * both)
  coefficient = raw / (np.sqrt(1 / 3) + STD_EPS)
  same(group_gradient("grpo", BINARY_X, 3), -coefficient * grad_mean(BINARY_X))


def whitened_pairs(reward_X):
  """Advantage of x against y, n and m tokens, whitened over the n + m tokens.

  With d = (r_x - r_y) / 2 and s = n + m: mean d (n - m) / s, so x has 2 d m / s, and the deviation
  is 2 |d| sqrt(n m / (s (s - 1))).
  """
  n, m = LENGTH_X[:, None], LENGTH_X[None]
  d = (reward_X[:, None] - reward_X) / 2
  std = 2 * np.abs(d) * np.sqrt(n * m / ((n + m) * (n + m - 1)))
  return 2 * d * m / (n + m) / (std + STD_EPS)


def test_reinforce_pp_baseline_of_pairs():
  """Whitening by tokens gives the shorter answer the larger advantage."""
  got = group_gradient("reinforce_pp_baseline", REWARD_X, 2)
  same(got, pair_gradient(whitened_pairs(REWARD_X)))


def test_reinforce_pp_of_pairs():
  """Without discount every token has the return of its answer: the same as with the baseline."""
  rows_NG, p_N = groups(2)
  place = np.arange(3) == LENGTH_X[:, None] - 1
  rewards_XT, mask_XT = place * REWARD_X[:, None], np.arange(3) < LENGTH_X[:, None]
  whiten_pair = jax.jit(jax.vmap(lambda r, m: reinforce_pp(r, m, 1.0)[0]))
  advantage_NGT = whiten_pair(rewards_XT[rows_NG], mask_XT[rows_NG])
  got = expected_gradient(
    REINFORCE, np.repeat(p_N / 2, 2), advantage_NGT.reshape(-1, 3), rows_N=rows_NG.ravel()
  )
  same(got, pair_gradient(whitened_pairs(REWARD_X)))


def test_gdpo_of_pairs_votes():
  """Each reward says who won; the weighted vote, not the sum of rewards, decides."""
  rows_NG, p_N = groups(2)
  weights = np.repeat([[1.0], [0.3]], 2, axis=1)
  values = [gdpo([REWARD_X[g], BINARY_X[g]], weights, [0, 0]) for g in rows_NG]
  got = expected_gradient(
    REINFORCE, np.repeat(p_N / 2, 2), np.concatenate(values), rows_N=rows_NG.ravel()
  )
  first, second = (normalised(r[:, None] - r) for r in (REWARD_X, BINARY_X))
  same(got, pair_gradient(normalised(2 * (first + 0.3 * second))))


def test_dynamic_sampling_scales_the_gradient_by_the_rate_of_kept_groups():
  """Dropped groups have advantage 0; refilling divides by the chance to be kept."""
  rows_NG, p_N = groups(2)
  keep_N = BINARY_X[rows_NG].sum(1) == 1
  advantage_N = np.concatenate([rloo(BINARY_X[g], [0, 0]) for g in rows_NG[keep_N]])
  rate = p_N[keep_N].sum()
  weight_N = np.repeat(p_N[keep_N] / rate / 2, 2)
  got = expected_gradient(REINFORCE, weight_N, advantage_N, rows_N=rows_NG[keep_N].ravel())
  same(got, -grad_mean(BINARY_X) / rate)


def aggregated(mode, **options):
  """Expected gradient of batches of two answers with a fixed baseline; whose reward is climbed?"""
  rows_NG, p_N = groups(2)
  lengths = LENGTH_X[rows_NG]
  weights = np.asarray([token_weights(mode, n, **options) for n in lengths])
  advantage_N = (REWARD_X - BASELINE)[rows_NG].ravel()
  weight_N = (p_N[:, None] * weights).ravel()
  return expected_gradient(REINFORCE, weight_N, advantage_N, rows_N=rows_NG.ravel())


def test_aggregations():
  """fixed and sum_norm climb E[r]; a mean over tokens climbs the reward a token."""
  advantage_X = REWARD_X - BASELINE
  same(aggregated("fixed", constant=5.0), -2 / 5 * grad_mean(REWARD_X))
  same(aggregated("seq_mean_token_sum_norm", l_max=4), -grad_mean(REWARD_X) / 4)
  same(aggregated("seq_mean_token_mean"), -grad_mean(advantage_X / LENGTH_X))
  shared_X = 1 / (LENGTH_X[:, None] + LENGTH_X) @ np.asarray(probs(THETA_CV))
  same(aggregated("token_mean"), -2 * grad_mean(advantage_X * shared_X))
  domains = {"domains_E": ["a", "b"], "shares": {"a": 3.0, "b": 1.0}}
  same(aggregated("domain_balanced", **domains), -grad_mean(advantage_X / LENGTH_X))


def test_weights_of_the_sign_make_another_reward():
  objective = PolicyObjective(positive_weight=0.1, negative_weight=2.0)
  advantage_X = REWARD_X - BASELINE
  weighted_X = np.where(advantage_X > 0, 0.1, 2.0) * advantage_X
  same(expected_gradient(objective, probs(THETA_CV), advantage_X), -grad_mean(weighted_X))


def test_the_entropy_bonus_climbs_the_entropy_at_the_states_that_are_visited():
  """Their distribution is held fixed: the bonus does not look for states of high entropy."""
  visits_C = visits(THETA_CV)

  def bonus(theta_CV):
    logp_CV = jax.nn.log_softmax(theta_CV)
    return -visits_C @ jnp.sum(jnp.exp(logp_CV) * logp_CV, axis=1)

  objective = PolicyObjective(loss="reinforce", entropy_coef=0.3)
  got = expected_gradient(objective, probs(THETA_CV), np.zeros(NUM))
  same(got, -0.3 * jax.grad(bonus)(THETA_CV))


def off_policy(objective, old=None):
  """The sampler is another policy."""
  weight_X = probs(OTHER_CV)
  return expected_gradient(objective, weight_X, REWARD_X - BASELINE, old=old, behavior=OTHER_CV)


def test_sequence_weights_make_the_gradient_exact_off_policy():
  correction = CorrectionConfig("seq_tis", cap=1e9)
  got = off_policy(PolicyObjective(loss="reinforce", correction=correction))
  same(got, -grad_mean(REWARD_X))


def token_surrogate_gradient():
  """grad of sum_s d_mu(s) sum_a pi(a|s) Q(s, a): each action corrected, the way to it not.

  d_mu are the visits of the sampler, Q its mean advantage after the action.
  """
  p_X, advantage_X = probs(OTHER_CV), REWARD_X - BASELINE
  ratio_free_XT = jnp.where(np.arange(3) < LENGTH_X[:, None], (p_X * advantage_X)[:, None], 0)
  taken_CV = jnp.zeros((7, 3)).at[STATE_XT, TOKEN_XT].add(ratio_free_XT)
  mu_CV = jax.nn.softmax(OTHER_CV)
  return jax.grad(lambda theta: jnp.sum(taken_CV * jax.nn.softmax(theta) / mu_CV))(THETA_CV)


WIDE = {"clip_low": 0.999, "clip_high": 1e6}
UNCLIPPED_TIS = CorrectionConfig("tis_token", cap=1e9)


@pytest.mark.parametrize(
  ("objective", "old"),
  [
    (PolicyObjective(loss="reinforce", correction=UNCLIPPED_TIS), None),
    (PolicyObjective(loss="ppo", correction=UNCLIPPED_TIS, **WIDE), None),
    (PolicyObjective(loss="ppo", old_policy="sampler", **WIDE), OTHER_CV),
    (PolicyObjective(loss="cispo", old_policy="sampler", clip_high=1e6), OTHER_CV),
  ],
  ids=["tis", "tis_and_ratio_of_one", "ratio_to_the_sampler", "cispo"],
)
def test_token_weights_correct_the_action_and_not_the_way_to_it(objective, old):
  """The same whether the gap is in the correction or in the ratio: it is applied once."""
  same(off_policy(objective, old), -token_surrogate_gradient())
  assert np.abs(token_surrogate_gradient() - grad_mean(REWARD_X)).max() > 1e-3


def test_clipping_takes_the_gradient_of_exactly_the_tokens_outside():
  """Old policy and sampler are another: -E_old[r A grad log pi] over the tokens within."""
  objective = PolicyObjective(clip_low=0.2, clip_high=0.28, dual_clip=1.5)
  advantage_X = REWARD_X - BASELINE
  ratio_XT = jnp.exp(logp_tokens(THETA_CV) - logp_tokens(OTHER_CV))
  good_XT = (advantage_X > 0)[:, None]
  inside_XT = jnp.where(good_XT, ratio_XT <= 1.28, (ratio_XT >= 0.8) & (ratio_XT <= 1.5))
  outside = np.asarray(~inside_XT & (np.arange(3) < LENGTH_X[:, None]))
  assert 0 < outside.sum() < LENGTH_X.sum()
  weight_XT = probs(OTHER_CV)[:, None] * inside_XT * ratio_XT * advantage_X[:, None]
  expected = jax.grad(lambda theta: -jnp.sum(weight_XT * logp_tokens(theta)))(THETA_CV)
  same(off_policy(objective, old=OTHER_CV), expected)
