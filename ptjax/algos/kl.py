"""Estimators of KL(policy || reference) from sampled tokens, as a loss and in the reward.

With x = logp - logp_ref of a token drawn from the policy, clipped to +-20 (Schulman 2020):

  name  value              E[value]      E[gradient], when used as a loss
  k1    x                  KL(pi||ref)   0: the score function has mean zero
  k2    x^2 / 2            not the KL    grad KL(pi||ref)
  k3    exp(-x) - 1 + x    KL(pi||ref)   grad KL(ref||pi)

Value and gradient are different questions. Sampling itself depends on the policy, and
differentiating an estimate at fixed samples leaves that part out. k1 and k3 estimate the divergence
without bias, so they are for reports and for rewards, where no gradient flows through them; as a
loss k2 has the right gradient, k3 that of the reverse divergence, and k1 pure noise.
"""

import jax
import jax.numpy as jnp

from ptjax.algos.gae import place_outcome_reward
from ptjax.algos.policy_loss import log_ratio
from ptjax.core.masked import as_float, fill


def k1(x) -> jax.Array:
  """x: unbiased for KL(pi||ref), of high variance, may be negative."""
  return x


def k2(x) -> jax.Array:
  """x^2 / 2: biased as a value, its gradient is that of KL(pi||ref)."""
  return jnp.square(x) / 2


def k3(x) -> jax.Array:
  """exp(-x) - 1 + x: unbiased for KL(pi||ref) and never negative."""
  return jnp.expm1(-x) + x


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_tokens(logp, logp_ref, estimator: str) -> jax.Array:
  """The estimate at every token; gradient exactly 0 where |logp - logp_ref| > 20.

  Args:
    logp: log-probs of the sampled tokens under the policy, masked entries filled.
    logp_ref: under the reference, same shape.
    estimator: a key of `KL_ESTIMATORS`.

  Raises:
    ValueError: unknown estimator.
  """
  if estimator not in KL_ESTIMATORS:
    raise ValueError(
      f"unknown KL estimator {estimator!r}; choose one of {', '.join(KL_ESTIMATORS)}"
    )
  return KL_ESTIMATORS[estimator](log_ratio(as_float(logp), as_float(logp_ref)))


def kl_loss(logp, logp_ref, estimator: str = "k2") -> jax.Array:
  """KL penalty per token, to be added to the policy loss with a coefficient > 0 and minimised.

  Only the gradient matters here: "k2" gives grad KL(pi||ref) in expectation, "k3" that of
  KL(ref||pi), as GRPO does. See the table of the module.

  Raises:
    ValueError: estimator "k1", whose expected gradient is zero, or an unknown one.
  """
  if estimator == "k1":
    raise ValueError("k1 as a loss has zero expected gradient; use 'k2', or k1 in the reward")
  return kl_tokens(logp, logp_ref, estimator)


def kl_in_reward(score, logp_T, logp_ref_T, mask_T, beta, estimator: str = "k1"):
  """Token rewards of one trajectory: -beta k at every action token, plus the score at the last.

  The KL of tool and padding tokens is not counted. k1 in the reward gives grad KL(pi||ref) through
  the policy gradient.

  Returns:
    (token_rewards f32[T], kl f32[T]), both 0 where mask is 0.
  """
  kl_T = fill(kl_tokens(fill(logp_T, mask_T), fill(logp_ref_T, mask_T), estimator), mask_T)
  return place_outcome_reward(score, mask_T) - beta * kl_T, kl_T
