"""Off-policy corrections and mismatch metrics against the golden cases, and packed sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.algos.correction import (
  CORRECTIONS,
  SEQUENCE_CORRECTIONS,
  effective_sample_size,
  mismatch,
  mismatch_tokens,
  tis_token,
)
from ptjax.algos.policy_loss import ppo_clip
from ptjax.core.masked import fill


def correct(kind, logp_old, logp_rollout, mask, **parameters):
  """Weights with every row one sequence."""
  if kind in SEQUENCE_CORRECTIONS:
    parameters |= {"segment_ids": np.zeros(mask.shape, np.int32), "num_segments": 1}
  fn = jax.jit(lambda *arrays: CORRECTIONS[kind](*arrays, **parameters))
  return fn(logp_old, logp_rollout, mask)


def op_weights(kind):
  return lambda **inputs: {"weights": correct(kind, **inputs)}


def op_corrected_ppo(
  logp_new,
  logp_old,
  logp_rollout,
  advantages,
  mask,
  correction,
  agg,
  eps_low,
  eps_high,
  dual_clip_c=None,
):
  parameters = {k: v for k, v in correction.items() if k != "kind"}
  weights = correct(correction["kind"], logp_old, logp_rollout, mask, **parameters)
  token_weight = token_weights(agg["mode"], mask.sum(1))[:, None].astype(logp_new.dtype)

  def loss(logp_new):
    clean = [fill(x, mask) for x in (logp_new, logp_old, advantages)]
    loss_tokens, _ = ppo_clip(*clean, clip_low=eps_low, clip_high=eps_high, dual_clip=dual_clip_c)
    return weighted_sum(weights * loss_tokens, token_weight, mask)

  value, grad = jax.jit(jax.value_and_grad(loss))(logp_new)
  return {"loss": value, "grad": grad, "weights": weights}


def op_ess(weights, mask):
  ess, ess_frac = jax.jit(effective_sample_size)(weights, mask)
  return {"ess": ess, "ess_frac": ess_frac}


def op_mismatch_enumerate(trainer_logits, rollout_logits):
  log_p, log_q = jax.nn.log_softmax(trainer_logits), jax.nn.log_softmax(rollout_logits)
  tokens = mismatch_tokens(log_p, log_q, np.ones(len(log_p)))
  q = jnp.exp(log_q)
  return {
    "kl": q @ (log_q - log_p),
    "expected_k1": q @ tokens["kl_k1"],
    "expected_k3": q @ tokens["kl_k3"],
    "expected_rho": q @ tokens["ratio"],
  }


OPS = {kind: op_weights(kind) for kind in CORRECTIONS} | {
  "corrected_ppo": op_corrected_ppo,
  "ess": op_ess,
  "mismatch": jax.jit(mismatch),
  "mismatch_enumerate": jax.jit(op_mismatch_enumerate),
}


@pytest.mark.golden("correction")
def test_golden(case):
  case.check(OPS)


PARAMETERS = {
  "tis_token": {"cap": 2.0},
  "icepop": {"low": 0.5, "high": 2.0},
  "seq_tis": {"cap": 2.0},
  "seq_mask_geo": {"low": 0.8, "high": 1.25},
  "seq_mask_token_range": {"low": 0.5, "high": 2.0},
}


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_a_pack_is_corrected_like_its_sequences_alone(kind):
  """Sequences of 2 and 3 tokens in one row, padding of NaN between and after."""
  first = (np.array([[-0.5, -1.0]]), np.array([[-0.6, -1.3]]))
  second = (np.array([[-0.7, -0.2, -0.3]]), np.array([[-0.6, -1.3, -0.5]]))
  gap, ones = np.full((1, 1), np.nan), np.ones((1, 1))
  old, rollout = (
    np.concatenate([a, gap, b, gap], axis=1) for a, b in zip(first, second, strict=True)
  )
  mask = ~np.isnan(old)
  segments = {"segment_ids": np.array([[1, 1, 0, 2, 2, 2, 0]]), "num_segments": 3}
  extra = segments if kind in SEQUENCE_CORRECTIONS else {}
  packed = CORRECTIONS[kind](old, rollout, mask, **PARAMETERS[kind], **extra)
  alone = [
    correct(kind, *pair, np.ones(pair[0].shape, bool), **PARAMETERS[kind])
    for pair in (first, second)
  ]
  expected = np.concatenate([alone[0], 0 * ones, alone[1], 0 * ones], axis=1)
  np.testing.assert_allclose(packed, expected, rtol=1e-6)


def test_weights_are_constants():
  """The weight takes no part in the gradient, though it is made from a log-prob of the policy."""
  grad = jax.grad(lambda old: tis_token(old, jnp.zeros(2), np.ones(2), cap=2.0).sum())
  assert np.all(np.asarray(grad(jnp.array([-0.1, 0.3]))) == 0)


def test_mismatch_without_tokens_is_zero():
  got = mismatch(np.array([np.nan]), np.array([np.inf]), np.array([False]))
  assert {name: float(value) for name, value in got.items()} == dict.fromkeys(got, 0.0)
