"""Preference and reward-model losses against the golden cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.preference import (
  PREFERENCE_LOSSES,
  bradley_terry,
  dpo,
  nonempty_pairs,
  sequence_score,
)
from ptjax.core.masked import fill, masked_mean


def op_preference(name, mean):
  def op(
    chosen_logps,
    chosen_mask,
    rejected_logps,
    rejected_mask,
    chosen_ref_logps=None,
    rejected_ref_logps=None,
    **parameters,
  ):
    pairs = nonempty_pairs(chosen_mask, rejected_mask)

    def loss(chosen_logps, rejected_logps):
      scores = []
      for logps, ref, mask in (
        (chosen_logps, chosen_ref_logps, chosen_mask),
        (rejected_logps, rejected_ref_logps, rejected_mask),
      ):
        scores += [sequence_score(x, mask, mean=mean) for x in (logps, ref) if x is not None]
      pair_losses, aux = PREFERENCE_LOSSES[name](*scores, **parameters)
      return masked_mean(pair_losses, pairs), (fill(pair_losses, pairs), aux)

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, (pair_losses, aux)), grads = step(chosen_logps, rejected_logps)
    return {
      "loss": value,
      "pair_losses": pair_losses,
      "grad_chosen": grads[0],
      "grad_rejected": grads[1],
      "accuracy": masked_mean(aux["correct"], pairs),
      **{key: fill(aux[key], pairs) for key in aux},
    }

  return op


def op_bt(chosen, rejected, pair_mask, label_smoothing, margin=0.0):
  def loss(chosen, rejected):
    clean = fill(chosen, pair_mask), fill(rejected, pair_mask), margin
    pair_losses, aux = bradley_terry(*clean, label_smoothing=label_smoothing)
    return masked_mean(pair_losses, pair_mask), masked_mean(aux["correct"], pair_mask)

  step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  (value, accuracy), grads = step(chosen, rejected)
  return {
    "loss": value,
    "accuracy": accuracy,
    "grad_chosen": grads[0],
    "grad_rejected": grads[1],
  }


OPS = {
  "dpo": op_preference("dpo", mean=False),
  "ipo": op_preference("ipo", mean=True),
  "simpo": op_preference("simpo", mean=True),
  "orpo": op_preference("orpo", mean=True),
  "bt": op_bt,
}


@pytest.mark.golden("preference")
def test_golden(case):
  case.check(OPS)


@pytest.mark.parametrize("margin", [-1e4, 1e4])
def test_logistic_stays_finite_far_from_zero(margin):
  loss, grad = jax.value_and_grad(lambda c: dpo(c, 0.0, 0.0, 0.0, beta=1.0)[0])(jnp.float32(margin))
  np.testing.assert_allclose([loss, grad], [max(-margin, 0), -float(margin < 0)], atol=1e-6)


def test_orpo_by_hand_tunix_1574():
  """p = 1/2 and 1/3 have odds 1 and 1/2: L = ln 2 - ln sigmoid(ln 2) = ln 2 + ln 1.5 = ln 3."""
  scores = jnp.log(jnp.array([1 / 2, 1 / 3]))
  loss, aux = PREFERENCE_LOSSES["orpo"](scores[0], scores[1], lam=1.0)
  np.testing.assert_allclose(loss, np.log(3.0), rtol=1e-6)
  assert aux["correct"] == 1
