"""Log-probabilities and entropies: golden cases, the closed-form gradient, bf16, alignment."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.logprobs import (
  logprobs_and_entropy,
  next_token_logprobs_and_entropy,
  next_token_targets,
  support_logprobs,
  token_logprobs,
)
from ptjax.core.masked import masked_mean


def op_token_logprobs(logits, tokens, mask, temperature, logits_dtype=None):
  # The float64 run widens the rounded logits, since bf16 logits are computed in float32.
  wide = logits.dtype if logits.dtype == np.float64 else None
  logits = jnp.asarray(logits, logits_dtype).astype(wide or logits_dtype)
  score = jax.jit(next_token_logprobs_and_entropy, static_argnums=3)
  logp, _, pred_mask = score(logits, tokens, mask, temperature)
  return {"logp": logp, "pred_mask": pred_mask, "seq_logp": np.sum(logp, axis=-1)}


def op_entropy(logits, mask, temperature):
  tokens = np.zeros(mask.shape, np.int32)

  def mean(logits):
    _, entropy, pred_mask = next_token_logprobs_and_entropy(logits, tokens, mask, temperature)
    return masked_mean(entropy, pred_mask), entropy

  (entropy_mean, entropy), grad = jax.jit(jax.value_and_grad(mean, has_aux=True))(logits)
  return {"entropy": entropy, "entropy_mean": entropy_mean, "grad": grad}


def op_support_logprobs(logits, tokens, support, temperature):
  width = max(map(len, support))
  support = np.array([ids + [-1] * (width - len(ids)) for ids in support], np.int32)

  def total(logits):
    logp = support_logprobs(logits, tokens, support, temperature)
    return logp.sum(), logp

  grad, logp = jax.jit(jax.grad(total, has_aux=True))(logits)
  return {"logp": logp, "grad": grad}


def op_sampler_trainer(logits, token, temperature, top_k=0, top_p=1.0):
  order = np.argsort(-logits, kind="stable")[: top_k or None]
  p = np.exp((logits[order] - logits.max()) / temperature)
  kept = np.sort(order[np.cumsum(p / p.sum()) - p / p.sum() < top_p]).astype(np.int32)

  @jax.jit
  def outputs(logits):
    every = jnp.broadcast_to(logits, (len(kept), len(logits)))
    return {
      "kept": kept,
      "sampler_logp": support_logprobs(logits, jnp.asarray(token), kept, temperature),
      "trainer_logp_full": token_logprobs(logits, jnp.asarray(token), temperature),
      "log_kept_mass": jax.nn.logsumexp(token_logprobs(every, kept, temperature)),
    }

  return outputs(logits)


OPS = {
  "token_logprobs": op_token_logprobs,
  "entropy": op_entropy,
  "support_logprobs": op_support_logprobs,
  "sampler_trainer": op_sampler_trainer,
}


@pytest.mark.golden("logprobs")
def test_golden(case):
  case.check(OPS)


def _autodiff(logits_BV, targets_B, temperature):
  """The definition, written without any care for range or memory."""
  logp_BV = jax.nn.log_softmax(logits_BV / temperature)
  return logp_BV[jnp.arange(len(targets_B)), targets_B], -jnp.sum(jnp.exp(logp_BV) * logp_BV, -1)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_value_and_gradient_equal_autodiff(temperature):
  with jax.enable_x64(True):
    rng = np.random.default_rng(0)
    logits_BV = jnp.asarray(rng.normal(size=(5, 11)) * 3)
    targets_B = jnp.asarray(rng.integers(0, 11, 5), jnp.int32)
    weights = jnp.asarray(rng.normal(size=(2, 5)))

    def loss(fn, logits_BV):
      logp_B, entropy_B = fn(logits_BV, targets_B, temperature)
      return weights[0] @ logp_B + weights[1] @ entropy_B

    def only_logp(logits_BV, targets_B, temperature):
      return token_logprobs(logits_BV, targets_B, temperature), jnp.zeros(5)

    def only_logp_autodiff(logits_BV, targets_B, temperature):
      return _autodiff(logits_BV, targets_B, temperature)[0], jnp.zeros(5)

    for fn, oracle in ((logprobs_and_entropy, _autodiff), (only_logp, only_logp_autodiff)):
      got = jax.jit(jax.value_and_grad(partial(loss, fn)))(logits_BV)
      expected = jax.jit(jax.value_and_grad(partial(loss, oracle)))(logits_BV)
      np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)
      np.testing.assert_allclose(got[1], expected[1], atol=1e-14)


def test_bf16_logits_give_float32_results_and_bf16_gradients():
  logits_BV = jnp.array([[1.0, 2.0, -3.0]], jnp.bfloat16)
  logp_B, entropy_B = logprobs_and_entropy(logits_BV, jnp.array([1]))
  grad_BV = jax.grad(lambda x: token_logprobs(x, jnp.array([1])).sum())(logits_BV)
  assert logp_B.dtype == entropy_B.dtype == jnp.float32
  assert grad_BV.dtype == jnp.bfloat16
  np.testing.assert_allclose(logp_B, [2 - np.log(np.exp([1.0, 2.0, -3.0]).sum())], rtol=1e-6)


def test_next_token_targets_mask_off_by_one_verl_3287():
  """The docstring's example: the logits at position 1 are those that are scored on token 2."""
  targets_BT, pred_mask_BT = next_token_targets([[10, 11, 12, 13, 14]], [[0, 0, 1, 1, 0]])
  assert targets_BT.tolist() == [[11, 12, 13, 14]]
  assert pred_mask_BT.tolist() == [[False, True, True, False]]


def test_masked_logits_leak_no_nan_skyrl_1635():
  logits_BTV = jnp.array([[[0.0, 1.0], [jnp.nan, jnp.inf], [0.0, 0.0]]])
  mask_BT = jnp.array([[0, 1, 0]])

  def total(logits_BTV):
    logp, entropy, _ = next_token_logprobs_and_entropy(
      logits_BTV, jnp.zeros((1, 3), jnp.int32), mask_BT
    )
    return logp.sum() + entropy.sum()

  value, grad_BTV = jax.jit(jax.value_and_grad(total))(logits_BTV)
  assert np.isfinite(value)
  assert np.all(np.asarray(grad_BTV[0, 1:]) == 0)
  assert np.all(np.isfinite(grad_BTV))


def test_temperature_in_the_trainer_trl_3029():
  """log_softmax([0, ln 3] / 0.5) = [ln 0.1, ln 0.9]."""
  logits_V = jnp.log(jnp.array([1.0, 3.0]))
  got = [token_logprobs(logits_V, jnp.array(i), 0.5) for i in (0, 1)]
  np.testing.assert_allclose(got, np.log([0.1, 0.9]), rtol=1e-6)


def test_filtered_sampler_and_trainer_agree_on_the_support_trl_6789():
  """Renormalised over the sampler's support the ratio is 1; over the full softmax it is not."""
  logits_V = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
  sampler_logp = np.log(0.3 / 0.8)
  target, support = jnp.array(1), jnp.array([0, 1, -1])
  np.testing.assert_allclose(support_logprobs(logits_V, target, support), sampler_logp, rtol=1e-6)
  np.testing.assert_allclose(token_logprobs(logits_V, target), np.log(0.3), rtol=1e-6)


@pytest.mark.parametrize("target", [2, -1])
def test_target_outside_the_support_has_no_probability_and_no_gradient(target):
  """-1 pads the support; as a target it must not match the padding."""
  support = jnp.array([0, 1, -1])
  logp, grad_V = jax.value_and_grad(support_logprobs)(jnp.zeros(4), jnp.array(target), support)
  assert logp == -np.inf
  assert np.all(np.asarray(grad_V) == 0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("fn", [token_logprobs, logprobs_and_entropy])
def test_temperature_must_be_positive(fn, temperature):
  with pytest.raises(ValueError, match="temperature must be > 0"):
    fn(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), temperature)
