"""Our RL objectives against TRL and verl.

Where they agree, so do value and gradient. Where they do not, the test asserts what takes theirs to
ours; the table in docs/numerics.md says who is right. `fixtures/make_cross_check.py` ran them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cross_check_cases import DATA, IN, arrays, check, close, same
from test_cross_check_pairs import CHECKS as PAIR_CHECKS

from ptjax.algos import correction, kl, policy_loss
from ptjax.algos.advantages import ADVANTAGES, reinforce_pp, spread_over_tokens
from ptjax.algos.aggregate import token_weights, weighted_sum
from ptjax.algos.gae import gae
from ptjax.algos.gdpo import gdpo
from ptjax.algos.logprobs import logprobs_and_entropy
from ptjax.algos.negatives import drift_mask
from ptjax.algos.value_loss import value_loss
from ptjax.core.masked import fill, masked_mean, masked_whiten

TRL_EPS, STD_EPS = 1e-4, 1e-6
MASK, GROUPS = IN["mask"] != 0, IN["group_ids"]
LENGTHS = MASK.sum(axis=1)
SEGMENTS = {"segment_ids": np.zeros(MASK.shape, np.int32), "num_segments": 1}
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
GSPO_CLIPS = {"clip_low": 0.05, "clip_high": 0.07}
# verl knows no missing reward, so it was given the answers that have a token; we leave 5 out.
SCORED = [*IN["rewards"][:5].tolist(), None]


# --- advantages ---------------------------------------------------------------------------------


def verl_group(name, theirs):
  ours = ADVANTAGES[name](SCORED, GROUPS, None, LENGTHS)
  close(theirs["advantages"], spread_over_tokens(ours, MASK)[:5])


def verl_gdpo(theirs):
  """verl whitens over tokens, so a long answer weighs more; the paper and we over answers."""
  second = [*IN["second_rewards"][:5].tolist(), None]
  parts = [ADVANTAGES["grpo"](r, GROUPS) for r in (SCORED, second)]
  total = parts[0] + 0.5 * parts[1]
  close(theirs["advantages"], masked_whiten(spread_over_tokens(total, MASK), MASK)[:5])
  ours = gdpo([SCORED, second], [[1.0] * 6, [0.5] * 6], GROUPS)
  close(ours[:5], (total[:5] - total[:5].mean()) / (total[:5].std(ddof=1) + STD_EPS))


def verl_reinforce_pp(theirs):
  advantages, returns = reinforce_pp(IN["token_rewards"], MASK, 0.9)
  close(theirs["advantages"], advantages, MASK)
  close(theirs["returns"], returns, MASK)


def verl_gae(theirs):
  run = jax.vmap(lambda r, v, m: gae(r, v, m, True, 0.0, 0.95, 0.9))
  advantages, returns = run(IN["token_rewards"], IN["values"], MASK)
  close(theirs["advantages"], masked_whiten(advantages, MASK), MASK)
  close(theirs["returns"], returns, MASK)


def trl_scale(rewards, groups=GROUPS):
  """TRL adds 1e-4 to a standard deviation where we add 1e-6."""
  std = np.array([np.nanstd(np.asarray(rewards, float)[groups == g], ddof=1) for g in groups])
  return (std + STD_EPS) / (std + TRL_EPS)


def missing(rewards):
  return [None if i == 1 else r for i, r in enumerate(rewards)]


def trl_grpo(theirs, rewards):
  ours = ADVANTAGES["grpo"](rewards, GROUPS)
  close(theirs["advantages"], ours * trl_scale(rewards))


def trl_batch_std(theirs):
  ours = ADVANTAGES["grpo_batch_std"](IN["rewards"], GROUPS)
  close(theirs["advantages"], ours * trl_scale(IN["rewards"], np.zeros(6)))


def trl_plain(name, theirs, rewards):
  close(theirs["advantages"], ADVANTAGES[name](rewards, GROUPS))


def trl_gdpo(theirs):
  columns = IN["rewards"], IN["second_rewards"]
  scaled = [ADVANTAGES["grpo"](r, GROUPS) * trl_scale(r) for r in columns]
  total = scaled[0] + 0.5 * scaled[1]
  close(theirs["advantages"], (total - total.mean()) / (total.std(ddof=1) + TRL_EPS))
  ours = gdpo(columns, [[1.0] * 6, [0.5] * 6], GROUPS)
  np.testing.assert_allclose(ours, theirs["advantages"], rtol=1e-3)


# --- policy losses ------------------------------------------------------------------------------


def weights_of(mode, rows=6, l_max=None):
  per_row = token_weights(mode, LENGTHS[:rows], l_max=l_max)
  return np.broadcast_to(per_row[:, None], MASK[:rows].shape)


def policy(name, *, advantages, mode="token_mean", rows=6, l_max=None, extra=None, **settings):
  """(loss, gradient) of a policy loss on the batch; `extra` adds to or multiplies the tokens."""
  a, mask = IN[advantages][:rows], MASK[:rows]
  a = np.broadcast_to(a[:, None], mask.shape) if a.ndim == 1 else a
  if name in policy_loss.SEQUENCE_LOSSES:
    segments = SEGMENTS["segment_ids"][:rows]
    settings |= {"mask": mask, "segment_ids": segments, "num_segments": 1}

  def loss(logp):
    tokens, _ = policy_loss.POLICY_LOSSES[name](logp, IN["logp_old"][:rows], a, **settings)
    tokens = extra(tokens, logp, a) if extra else tokens
    return weighted_sum(tokens, weights_of(mode, rows, l_max), mask)

  return jax.value_and_grad(loss)(jnp.asarray(IN["logp"][:rows]))


def ratio():
  return np.exp(IN["logp"] - IN["logp_old"])


def agrees(theirs, *args, **settings):
  same(theirs, policy(*args, **settings))


def verl_cispo_lower_bound(theirs):
  """verl also raises a ratio to 1 - clip_low; MiniMax has no lower bound, nor do we."""
  _, grad = policy("cispo", advantages="token_advantages", clip_high=0.28)
  low = ratio() < 0.8
  assert low[MASK].any()
  close(theirs["grad"], np.where(low, 0.8 / ratio(), 1) * grad, MASK)


def verl_dppo(theirs):
  """The same gradient, of -A sg(r) log p instead of -A r: the value has no meaning of its own."""
  tokens = {"advantages": "token_advantages", "clip_low": 0.15, "clip_high": 0.1}
  times_logp = policy("dppo_tv", extra=lambda x, logp, a: x * logp, **tokens)
  close(theirs["loss"], times_logp[0])
  close(theirs["grad"], policy("dppo_tv", **tokens)[1])


def capped(tokens, logp, a):
  rho = correction.tis_token(IN["logp_old"], IN["logp_behavior"], MASK, cap=1.2)
  return tokens * rho


def drifted(tokens, logp, a):
  return tokens * drift_mask(logp, IN["logp_behavior"], a, MASK, limit=0.05, **SEGMENTS)


def trl_empty(theirs):
  """TRL's mean over answers counts the one without a trained token."""
  loss, grad = policy("ppo", advantages="advantages", mode="seq_mean_token_mean", **CLIPS)
  same(theirs, (loss * 5 / 6, grad * 5 / 6))


def with_kl(tokens, logp, a):
  return tokens + 0.1 * kl.kl_loss(logp, IN["logp_ref"], "k3")


def trl_entropy(theirs):
  def bonus(logits):
    entropy = logprobs_and_entropy(logits, np.zeros(MASK.shape, np.int32))[1]
    return -0.1 * masked_mean(entropy, MASK)

  value, grad = jax.value_and_grad(bonus)(jnp.asarray(IN["logits"]))
  loss, grad_logp = policy("ppo", advantages="advantages", **CLIPS)
  same(theirs, (loss + value, grad_logp))
  close(theirs["grad_logits"], grad)


# --- corrections, KL, aggregation, critic -------------------------------------------------------


def weighs(kind, theirs, given=IN, mask=MASK, **settings):
  if kind in correction.SEQUENCE_CORRECTIONS:
    settings |= {"segment_ids": np.zeros(mask.shape, np.int32), "num_segments": 1}
  ours = correction.CORRECTIONS[kind](given["logp_old"], given["logp_behavior"], mask, **settings)
  assert np.unique(np.asarray(ours)[mask]).size > 1
  close(theirs["weights"], ours, mask)


def trl_weighs(kind, theirs, **settings):
  weighs(kind, theirs, theirs, theirs["mask"] != 0, **settings)


def trl_seq_mask(theirs):
  """An icepop of the product over the sequence, which we do not have: whole weights or 0."""
  mask = theirs["mask"] != 0
  rho = correction.seq_tis(
    theirs["logp_old"], theirs["logp_behavior"], mask, cap=1e9,
    segment_ids=np.zeros(mask.shape, np.int32), num_segments=1,
  )  # fmt: skip
  inside = (rho >= 0.8) & (rho <= 1.2)
  assert 0 < inside[mask].sum() < mask.sum()
  close(theirs["weights"], np.where(inside, rho, 0), mask)


def estimates(name):
  def value(x):
    return kl.kl_tokens(x, jnp.zeros_like(x), name)

  x = jnp.asarray(IN["kl_gaps"])
  return value(x), jax.grad(lambda x: value(x).sum())(x)


NEAR = np.abs(IN["kl_gaps"]) < 20


def verl_kl(name, theirs):
  """We clip |log p - log p_ref| at 20 in all three, verl in k3 alone."""
  value, grad = estimates(name)
  close(theirs["value"], value, NEAR)
  close(theirs["grad"], grad, NEAR)
  np.testing.assert_array_equal(grad[~NEAR], 0)
  assert (theirs["grad"][~NEAR] != 0).all()


def verl_k3(theirs):
  """verl caps k3 at 10, where its gradient ends: a token far under the reference is let go."""
  value, grad = estimates("k3")
  close(theirs["value"], np.minimum(value, 10))
  close(theirs["grad"], np.where(value < 10, grad, 0))
  assert ((value > 10) & (grad < 0)).any()


def verl_straight_through(theirs):
  """k3's value with k2's gradient: what we report, and what we descend."""
  close(theirs["value"], np.minimum(estimates("k3")[0], 10))
  close(theirs["grad"], estimates("k2")[1], NEAR)


def aggregated(mode, theirs, l_max=None):
  def loss(tokens):
    return weighted_sum(tokens, weights_of(mode, l_max=l_max), MASK)

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(IN["logp"])))


def verl_value(theirs):
  def loss(values):
    tokens, _ = value_loss(values, IN["old_values"], IN["returns"], clip=0.2)
    return weighted_sum(tokens, weights_of("token_mean"), MASK)

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(IN["values"])))


def verl_entropy(theirs):
  def loss(logits):
    entropy = logprobs_and_entropy(logits, np.zeros(MASK.shape, np.int32))[1]
    return masked_mean(fill(entropy, MASK), MASK)

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(IN["logits"])))


def losses(name, advantages="token_advantages", **settings):
  return lambda theirs: agrees(theirs, name, advantages=advantages, **settings)


by_answer = functools.partial(losses, advantages="advantages")
seq_mean = {"mode": "seq_mean_token_mean"}

CHECKS = {
  "verl": {
    "grpo": check(verl_group, "grpo"),
    "dr_grpo": check(verl_group, "dr_grpo"),
    "rloo": check(verl_group, "rloo"),
    "reinforce_pp_baseline": check(verl_group, "reinforce_pp_baseline"),
    "gdpo": verl_gdpo,
    "reinforce_pp": verl_reinforce_pp,
    "gae": verl_gae,
    "ppo": losses("ppo", dual_clip=3.0, **CLIPS),
    "gspo": by_answer("gspo", **seq_mean, **GSPO_CLIPS),
    "gspo_token": losses("gspo_token", **seq_mean, **GSPO_CLIPS),
    "cispo_no_lower_bound": losses("cispo", clip_high=0.28),
    "cispo_lower_bound": verl_cispo_lower_bound,
    "dppo_tv": verl_dppo,
    "ppo_with_tis": losses("ppo", dual_clip=3.0, extra=capped, **CLIPS),
    "tis_token": check(weighs, "tis_token", cap=1.2),
    "seq_tis": check(weighs, "seq_tis", cap=1.2),
    "icepop": check(weighs, "icepop", low=0.8, high=1.2),
    # verl compares 1 / rho with the bounds.
    "seq_mask_geo": check(weighs, "seq_mask_geo", low=1 / 1.2, high=1 / 0.9),
    "token_mean": check(aggregated, "token_mean"),
    "seq_mean_token_mean": check(aggregated, "seq_mean_token_mean"),
    "seq_mean_token_sum_norm": check(aggregated, "seq_mean_token_sum_norm", l_max=10),
    "kl_k1": check(verl_kl, "k1"),
    "kl_k2": check(verl_kl, "k2"),
    "kl_k3": verl_k3,
    "kl_k3_straight_through": verl_straight_through,
    "value_loss": verl_value,
    "entropy": verl_entropy,
  },
  "trl": {
    "grpo": check(trl_grpo, rewards=IN["rewards"].tolist()),
    "grpo_missing_reward": check(trl_grpo, rewards=missing(IN["rewards"])),
    "dr_grpo": check(trl_plain, "dr_grpo", rewards=IN["rewards"]),
    "grpo_batch_std": trl_batch_std,
    "gdpo": trl_gdpo,
    "rloo": check(trl_plain, "rloo", rewards=IN["rewards"]),
    "rloo_missing_reward": check(trl_plain, "rloo", rewards=missing(IN["rewards"])),
    "ppo_token_mean": by_answer("ppo", **CLIPS),
    "ppo_per_token": losses("ppo", **CLIPS),
    "ppo_seq_mean": trl_empty,
    "ppo_seq_mean_no_empty": by_answer("ppo", rows=5, **seq_mean, **CLIPS),
    "ppo_sum_norm": by_answer("ppo", mode="seq_mean_token_sum_norm", rows=5, l_max=10, **CLIPS),
    "dual_clip": losses("ppo", dual_clip=3.0, **CLIPS),
    "gspo": by_answer("gspo", rows=5, **seq_mean, **CLIPS),
    # TRL's epsilon_high is the cap itself, ours its distance from 1.
    "cispo": by_answer("cispo", clip_high=0.3),
    "kl_k3": by_answer("ppo", extra=with_kl, **CLIPS),
    "tis": by_answer("ppo", extra=capped, **CLIPS),
    "negative_drift": by_answer("ppo", extra=drifted, **CLIPS),
    "entropy": trl_entropy,
    "tis_token": check(trl_weighs, "tis_token", cap=1.2),
    "icepop": check(trl_weighs, "icepop", low=0.8, high=1.2),
    "seq_tis": check(trl_weighs, "seq_tis", cap=1.2),
    "seq_mask": trl_seq_mask,
  },
}


@pytest.mark.parametrize(
  ("library", "case"), [(library, case) for library in CHECKS for case in CHECKS[library]]
)
def test_cross_check(library, case):
  with jax.enable_x64(True):
    CHECKS[library][case](arrays(DATA[library][case]))


def test_every_result_is_checked():
  assert CHECKS["verl"].keys() == DATA["verl"].keys()
  assert CHECKS["trl"].keys() | PAIR_CHECKS.keys() == DATA["trl"].keys()


def test_the_batch_reaches_every_clip():
  """Agreement would mean little on a batch whose ratios stay within all bounds."""
  r, a = ratio()[MASK], IN["token_advantages"][MASK]
  for acted in (r < 0.8, r > 1.28, (r > 3) & (a < 0), (r > 1.28) & (a > 0), (r < 0.8) & (a < 0)):
    assert acted.any()
