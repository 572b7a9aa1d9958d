"""Policy objectives against the golden cases, and the exact gradient on an enumerable policy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.algos.policy_loss import cispo, gspo, ppo_clip, reinforce
from ptjax.core.masked import fill, masked_mean


def run(loss_fn, logp_new, logp_old, advantages, mask, agg, micro_batches=None):
  """Loss, gradient and clip fractions; weights from the whole batch, sums over micro-batches."""
  weights = token_weights(agg["mode"], mask.sum(1), **{k: agg[k] for k in agg if k != "mode"})
  weights = np.broadcast_to(weights[:, None], mask.shape).astype(logp_new.dtype)

  def part(logp_new, rows):
    # No old policy: the policy itself, held constant.
    old = jax.lax.stop_gradient(logp_new) if logp_old is None else logp_old
    clean = [fill(x[rows], mask[rows]) for x in (logp_new, old, advantages)]
    loss_tokens, aux = loss_fn(*clean, rows)
    return weighted_sum(loss_tokens, weights[rows], mask[rows]), aux

  losses, grads = [], 0
  for rows in micro_batches or [range(len(mask))]:
    step = jax.jit(jax.value_and_grad(partial(part, rows=np.array(rows)), has_aux=True))
    (loss, aux), grad = step(logp_new)
    losses.append(loss)
    grads += grad
  out = {"loss": sum(losses), "grad": grads, "micro_losses": losses, "aux": aux}
  if micro_batches is None:
    out["clip_frac_low"] = masked_mean(aux["clip_low"], mask)
    out["clip_frac_high"] = masked_mean(aux["clip_high"], mask)
  return out


def op_ppo(
  logp_new,
  logp_old,
  advantages,
  mask,
  agg,
  eps_low,
  eps_high,
  dual_clip_c=None,
  micro_batches=None,
  repeat_rows=1,
):
  def loss_fn(new, old, advantages, rows):
    return ppo_clip(
      new, old, advantages, clip_low=eps_low, clip_high=eps_high, dual_clip=dual_clip_c
    )

  out = run(loss_fn, logp_new, logp_old, advantages, mask, agg, micro_batches)
  if repeat_rows > 1:
    stacked = [np.concatenate([x] * repeat_rows) for x in (logp_new, logp_old, advantages, mask)]
    repeated = run(loss_fn, *stacked, agg)
    np.testing.assert_allclose(repeated["loss"], out["loss"], rtol=1e-5)
    grad = np.concatenate([out["grad"]] * repeat_rows) / repeat_rows
    np.testing.assert_allclose(repeated["grad"], grad, rtol=1e-5, atol=1e-8)
  return out


def op_gspo(logp_new, logp_old, advantages, mask, eps_low, eps_high):
  def loss_fn(new, old, advantages, rows):
    return gspo(
      new,
      old,
      advantages,
      mask=mask[rows],
      segment_ids=np.zeros(mask[rows].shape, np.int32),
      num_segments=1,
      clip_low=eps_low,
      clip_high=eps_high,
    )

  advantages = np.broadcast_to(advantages[:, None], mask.shape)
  out = run(loss_fn, logp_new, logp_old, advantages, mask, {"mode": "seq_mean_token_mean"})
  ratio = np.where(mask.any(1), np.asarray(out["aux"]["ratio"])[:, 0], 0)
  return {**out, "seq_ratio": ratio}


def op_cispo(logp_new, logp_old, advantages, mask, agg, eps_high):
  def loss_fn(new, old, advantages, rows):
    return cispo(new, old, advantages, clip_high=eps_high)

  return run(loss_fn, logp_new, logp_old, advantages, mask, agg)


def op_reinforce(logp_new, logp_old, advantages, mask, agg):
  return run(lambda *args: reinforce(*args[:3]), logp_new, logp_old, advantages, mask, agg)


OPS = {"ppo": op_ppo, "gspo": op_gspo, "cispo": op_cispo, "reinforce": op_reinforce}


@pytest.mark.golden("policy_loss")
def test_golden(case):
  case.check(OPS)


def test_gspo_of_a_pack_equals_gspo_of_its_sequences():
  """Two sequences in one row, with a gap between, give the ratios that they have alone."""
  logp_new = jnp.array([[-0.5, -1.0, -3.0, -0.7, -0.2, -0.3]])
  logp_old = jnp.array([[-0.6, -1.3, -9.0, -0.6, -0.3, -0.5]])
  mask = jnp.array([[1, 1, 0, 1, 1, 1]])
  segment_ids = jnp.array([[1, 1, 0, 2, 2, 2]])
  _, aux = gspo(
    logp_new,
    logp_old,
    jnp.ones((1, 6)),
    mask=mask,
    segment_ids=segment_ids,
    num_segments=3,
    clip_low=0.2,
    clip_high=0.2,
  )
  expected = np.exp([0.2, 0.2, 0.0, 0.2 / 3, 0.2 / 3, 0.2 / 3])
  np.testing.assert_allclose(aux["ratio"][0], expected, rtol=1e-6)


def gspo_of_single_tokens(logp_new, logp_old, advantages):
  """GSPO where every outcome is a sequence of one token: its ratio is the token's."""
  rows = [x[:, None] for x in (logp_new, logp_old, advantages)]
  segments = {"segment_ids": jnp.zeros((4, 1), jnp.int32), "num_segments": 1}
  loss, aux = gspo(*rows, mask=jnp.ones((4, 1)), **segments, clip_low=3e-4, clip_high=4e-4)
  return loss[:, 0], aux


@pytest.mark.parametrize(
  "loss_fn",
  [
    lambda new, old, adv: ppo_clip(new, old, adv, clip_low=0.2, clip_high=0.28),
    lambda new, old, adv: cispo(new, old, adv, clip_high=0.28),
    reinforce,
    gspo_of_single_tokens,
  ],
  ids=["ppo", "cispo", "reinforce", "gspo"],
)
def test_expected_gradient_is_the_policy_gradient(loss_fn):
  """On policy, sum_v p_v grad loss(v) = -grad sum_v p_v A_v = -p (A - p.A), by enumeration."""
  with jax.enable_x64(True):
    logits_V = jnp.array([0.5, -0.3, 1.2, 0.0])
    advantages_V = jnp.array([1.0, -2.0, 0.5, 3.0])
    p_V = jax.nn.softmax(logits_V)

    def expected_loss(logits_V):
      logp_V = jax.nn.log_softmax(logits_V)
      return jnp.sum(p_V * loss_fn(logp_V, jnp.log(p_V), advantages_V)[0])

    got = jax.jit(jax.grad(expected_loss))(logits_V)
    expected = -p_V * (advantages_V - p_V @ advantages_V)
  np.testing.assert_allclose(got, expected, atol=1e-12)


def test_ratios_of_half_precision_log_probs_do_not_overflow():
  """e^15 is beyond float16; the difference of two float16 numbers is taken in float32."""
  new, old = jnp.array([-0.5], jnp.float16), jnp.array([-15.5], jnp.float16)
  loss, aux = ppo_clip(new, old, jnp.array([-1.0], jnp.float16), clip_low=0.2, clip_high=0.2)
  np.testing.assert_allclose([loss[0], aux["ratio"][0]], np.exp(15.0), rtol=1e-6)
  assert loss.dtype == jnp.float32
