"""Preference losses on the scores of a chosen and a rejected response, per pair.

A score is the sum (DPO, KTO) or the mean (IPO, SimPO, ORPO) of the response's token log-probs:
`sequence_score`. Every loss returns `(pair_losses, aux)`, f32[B] each; the loss of a batch is
`masked_mean(pair_losses, pair_mask)` with `pair_mask` false where either response is empty, so that
an empty pair adds neither loss nor count. KTO alone judges single responses.

Arguments: `chosen`, `rejected` (and their `_ref` under the reference, constant) are f32[B].
"""

import jax
import jax.numpy as jnp

from ptjax.core.masked import masked_mean, masked_sum

# log(1 - exp(l)) diverges at l = 0: a certain response is read as this, with gradient 0.
ORPO_MAX_LOGP = -1e-6


def sequence_score(logps_BT, mask_BT, *, mean: bool) -> jax.Array:
  """Sum, or mean, of the response's token log-probs, f32[B]; 0 for an empty response."""
  return (masked_mean if mean else masked_sum)(logps_BT, mask_BT, axis=-1)


def nonempty_pairs(chosen_mask_BT, rejected_mask_BT) -> jax.Array:
  """True where both responses have a token, bool[B]: the `pair_mask` of a batch."""
  return jnp.any(chosen_mask_BT, axis=-1) & jnp.any(rejected_mask_BT, axis=-1)


def _smoothed_logistic(margin, label_smoothing):
  """-(1 - s) log sigmoid(m) - s log sigmoid(-m), finite for any m."""
  right = -(1 - label_smoothing) * jax.nn.log_sigmoid(margin)
  return right - label_smoothing * jax.nn.log_sigmoid(-margin)


def dpo(chosen, chosen_ref, rejected, rejected_ref, *, beta, label_smoothing=0.0):
  """L = -log sigmoid(beta h), h = (c - c_ref) - (r - r_ref), labels flipped with probability s.

  Scores are sums. aux: `chosen_rewards` and `rejected_rewards`, the implicit rewards
  beta (logp - logp_ref), and `correct`, 1 where the chosen one is larger.
  Source: Rafailov et al. 2023, eq. 7; smoothing: Mitchell 2023 (cDPO).
  """
  chosen_rewards = beta * (chosen - chosen_ref)
  rejected_rewards = beta * (rejected - rejected_ref)
  losses = _smoothed_logistic(chosen_rewards - rejected_rewards, label_smoothing)
  return losses, {
    "chosen_rewards": chosen_rewards,
    "rejected_rewards": rejected_rewards,
    "correct": (chosen_rewards > rejected_rewards).astype(losses.dtype),
  }


def ipo(chosen, chosen_ref, rejected, rejected_ref, *, beta):
  """L = (h - 1 / (2 beta))^2, h as in `dpo` but of means. Source: Azar et al. 2023."""
  margin = (chosen - chosen_ref) - (rejected - rejected_ref)
  losses = jnp.square(margin - 1 / (2 * beta))
  return losses, {"correct": (margin > 0).astype(losses.dtype)}


def simpo(chosen, rejected, *, beta, gamma):
  """L = -log sigmoid(beta (c - r) - gamma), means, no reference; gamma is not scaled by beta.

  Source: Meng et al. 2024.
  """
  losses = -jax.nn.log_sigmoid(beta * (chosen - rejected) - gamma)
  return losses, {"correct": (chosen > rejected).astype(losses.dtype)}


def _log_odds(logp):
  """log(p / (1 - p)) of a mean log-prob; constant above `ORPO_MAX_LOGP`."""
  logp = jnp.minimum(logp, ORPO_MAX_LOGP)
  return logp - jnp.log(-jnp.expm1(logp))


def orpo(chosen, rejected, *, lam):
  """L = -c - lam log sigmoid(log odds(c) - log odds(r)), means, no reference.

  The first term is supervised fine-tuning on the chosen response. Source: Hong et al. 2024.
  """
  log_odds_ratio = _log_odds(chosen) - _log_odds(rejected)
  losses = -chosen - lam * jax.nn.log_sigmoid(log_odds_ratio)
  return losses, {"correct": (chosen > rejected).astype(losses.dtype)}


def kto(score, score_ref, desirable, kl, *, beta, desirable_weight=1.0, undesirable_weight=1.0):
  """Loss of single answers: is each better, or worse, than what the policy usually gains?

      L = w_d (1 - sigmoid(beta (h - z)))    of a desirable answer
      L = w_u (1 - sigmoid(beta (z - h)))    of an undesirable one,    h = score - score_ref

  Scores are sums. aux: `rewards`, the implicit rewards beta h.

  Args:
    score, score_ref: f32[B] under the policy and the reference.
    desirable: bool[B].
    kl: z of `kto_reference_point`, a constant.
    beta: strength of the tie to the reference.
    desirable_weight, undesirable_weight: w_d and w_u; their ratio should make up for the
      ratio of the numbers of the two kinds.

  Source: Ethayarajh et al. 2024, eq. 8.
  """
  gain = beta * (score - score_ref - kl)
  # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where x is large.
  losses = jnp.where(
    desirable,
    desirable_weight * jax.nn.sigmoid(-gain),
    undesirable_weight * jax.nn.sigmoid(gain),
  )
  return losses, {"rewards": beta * (score - score_ref)}


def kto_reference_point(score, score_ref, mask) -> jax.Array:
  """z = max(0, mean over the batch of score - score_ref), without gradient.

  The scores are of answers that belong to other prompts of the batch: an estimate of
  KL(policy || reference) that is no function of the answers being judged.
  Source: Ethayarajh et al. 2024, section 4.1.
  """
  return jax.lax.stop_gradient(jnp.maximum(0, masked_mean(score - score_ref, mask)))


def bradley_terry(chosen, rejected, margin=0.0, *, label_smoothing=0.0):
  """Reward-model loss L = -log sigmoid(c - r - margin) on scalar rewards f32[B].

  `correct` ignores the margin. Source: Bradley and Terry 1952; margin: Touvron et al. 2023, eq. 2.
  """
  losses = _smoothed_logistic(chosen - rejected - margin, label_smoothing)
  return losses, {"correct": (chosen > rejected).astype(losses.dtype)}


PREFERENCE_LOSSES = {"dpo": dpo, "ipo": ipo, "simpo": simpo, "orpo": orpo}
