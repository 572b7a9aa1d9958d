"""KL estimators: golden cases, and which of them has the right gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.kl import KL_ESTIMATORS, kl_in_reward, kl_loss, kl_tokens
from ptjax.core.masked import fill, masked_mean


def op_kl_estimator(logp, logp_ref, mask, estimator):
  def mean(logp):
    tokens = kl_tokens(fill(logp, mask), fill(logp_ref, mask), estimator)
    return masked_mean(tokens, mask), fill(tokens, mask)

  (kl_mean, tokens), grad = jax.jit(jax.value_and_grad(mean, has_aux=True))(logp)
  return {"kl_tokens": tokens, "kl_mean": kl_mean, "grad": grad}


def op_kl_enumerate(logits, ref_logits):
  """Expectations over all outcomes, the sampling weights p held fixed."""
  p, q = jax.nn.softmax(logits), jax.nn.softmax(ref_logits)
  log_q = jnp.log(q)

  def kl(logits, direction):
    log_p = jax.nn.log_softmax(logits)
    gap = log_p - log_q
    return jnp.exp(log_p) @ gap if direction == "pi_ref" else -q @ gap

  def expected(logits, estimator):
    return p @ kl_tokens(jax.nn.log_softmax(logits), log_q, estimator)

  def in_reward(logits):
    return p @ (kl_tokens(jnp.log(p), log_q, "k1") * jax.nn.log_softmax(logits))

  out = {"expected_grad_k1_in_reward": jax.grad(in_reward)(logits)}
  for direction in ("pi_ref", "ref_pi"):
    value, grad = jax.value_and_grad(kl)(logits, direction)
    out |= {f"kl_{direction}": value, f"grad_kl_{direction}": grad}
  for name in KL_ESTIMATORS:
    value, grad = jax.value_and_grad(expected)(logits, name)
    out |= {f"expected_{name}": value, f"expected_grad_{name}_as_loss": grad}
  return out


def op_kl_in_reward(scores, logp, logp_ref, mask, beta, estimator):
  @jax.jit
  def outputs(scores, logp, logp_ref, mask):
    per_row = jax.vmap(kl_in_reward, in_axes=(0, 0, 0, 0, None, None))
    rewards, kl = per_row(scores, logp, logp_ref, mask, beta, estimator)
    return {
      "token_rewards": rewards,
      "kl_per_sequence": kl.sum(-1),
      "kl_mean": masked_mean(kl, mask),
    }

  return outputs(scores, logp, logp_ref, mask)


OPS = {
  "kl_estimator": op_kl_estimator,
  "kl_enumerate": jax.jit(op_kl_enumerate),
  "kl_in_reward": op_kl_in_reward,
}


@pytest.mark.golden("kl")
def test_golden(case):
  case.check(OPS)


def test_k1_as_a_loss_is_refused_tunix_grpo_default():
  with pytest.raises(ValueError, match="zero expected gradient"):
    kl_loss(jnp.zeros(1), jnp.zeros(1), "k1")


@pytest.mark.parametrize("fn", [kl_loss, kl_tokens])
def test_unknown_estimator_is_an_error(fn):
  with pytest.raises(ValueError, match="choose one of k1, k2, k3"):
    fn(jnp.zeros(1), jnp.zeros(1), "k4")


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_loss_carries_gradient_and_pulls_back_skyrl_1353_marin_1742(estimator):
  """A step against the gradient moves a likelier token's log-prob down to the reference's."""
  logp, logp_ref = jnp.array([-0.5, -2.0]), jnp.array([-1.0, -1.0])
  grad = jax.grad(lambda logp: kl_loss(logp, logp_ref, estimator).sum())(logp)
  assert grad[0] > 0 > grad[1]


def test_kl_of_tool_tokens_is_not_counted_slime_1372():
  rewards, kl = kl_in_reward(
    1.0, jnp.array([-1.0, -9.0, -1.0]), jnp.array([-2.0, -1.0, -2.0]), np.array([1, 0, 1]), 0.1
  )
  np.testing.assert_allclose(rewards, [-0.1, 0.0, 0.9], rtol=1e-6)
  np.testing.assert_allclose(kl, [1.0, 0.0, 1.0])
