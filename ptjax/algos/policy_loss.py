"""Policy-gradient objectives per token, before masking and normalisation.

Every objective returns `(loss_tokens, aux)`, of the shape of its inputs; the loss of a batch is
`aggregate.weighted_sum(loss_tokens, weights, mask)`. Entries that may hold NaN are filled by the
caller first (`core.masked.fill`), which is the other half of the double-where.

`aux` holds per token the `ratio`, and the indicators `clip_low` and `clip_high`: 1 where the bound
took the gradient away or capped the weight. Their masked means are the clip fractions.
"""

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float, segment_mean, spread

# exp of a larger gap overflows or means nothing; beyond it the gradient is 0.
LOG_RATIO_LIMIT = 20.0


def _floats(*arrays) -> tuple[jax.Array, ...]:
  """In float32 or wider: exp(20) is infinite in float16, and bf16 knows no ratio of 1.001."""
  return tuple(map(as_float, arrays))


def log_ratio(logp_new, logp_old) -> jax.Array:
  """log(pi_new / pi_old) = logp_new - logp_old, clipped to +-20."""
  return jnp.clip(logp_new - logp_old, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _aux(ratio, clip_low, clip_high) -> dict[str, jax.Array]:
  aux = {"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high}
  return jax.tree.map(lambda x: jax.lax.stop_gradient(jnp.full(ratio.shape, x, ratio.dtype)), aux)


def _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip=None):
  """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0."""
  low, high = 1 - clip_low, 1 + clip_high
  loss = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, low, high))
  if dual_clip is not None:
    loss = jnp.where(advantages < 0, jnp.minimum(loss, -advantages * dual_clip), loss)
  clipped_low = (advantages < 0) & (ratio < low)
  clipped_high = (advantages > 0) & (ratio > high)
  return loss, _aux(ratio, clipped_low, clipped_high)


def ppo_clip(logp_new, logp_old, advantages, *, clip_low, clip_high, dual_clip=None):
  """Clipped surrogate of PPO, with separate bounds and the optional dual clip.

  r = exp(logp_new - logp_old), L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); with
  `dual_clip` = c > 1, L = min(L, -A c) where A < 0, which bounds the loss of a token that became
  much likelier although it is bad.

  Args:
    logp_new: log-probs under the policy being trained; the gradient flows through it.
    logp_old: under the proximal policy, constant. `stop_gradient(logp_new)` makes r = 1.
    advantages: same shape, constant.
    clip_low, clip_high: widths of the trust interval; 0.2 and 0.28 in DAPO.
    dual_clip: c, or None.

  Sources: Schulman et al. 2017 (PPO), eq. 7; Ye et al. 2020 (dual clip); Yu et al. 2025 (DAPO,
  clip-higher).
  """
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  ratio = jnp.exp(log_ratio(logp_new, logp_old))
  return _clipped_surrogate(ratio, advantages, clip_low, clip_high, dual_clip)


def gspo(logp_new, logp_old, advantages, *, mask, segment_ids, num_segments, clip_low, clip_high):
  """Clipped surrogate on the length-normalised ratio of the whole sequence.

  s_i = exp(mean over the tokens of sequence i of (logp_new - logp_old)), and every token carries
  max(-A s_i, -A clip(s_i, 1 - clip_low, 1 + clip_high)). With the weights of
  `seq_mean_token_mean` the sum over tokens is the paper's mean over sequences.

  Args:
    logp_new, logp_old, advantages: [B, T], rows being packs of sequences; the advantage of a
      sequence stands on each of its tokens.
    mask: bool[B, T], tokens that count.
    segment_ids: i32[B, T] in 0..num_segments-1, the sequence of each token within its row. One
      sequence a row is `zeros` with `num_segments=1`.
    num_segments: static bound on the sequences of a row.
    clip_low, clip_high: around 3e-4 and 4e-4 in the paper.

  `aux["ratio"]` is s_i on the tokens of sequence i. Source: Zheng et al. 2025 (GSPO).
  """
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  gap_BG = segment_mean(logp_new - logp_old, mask, segment_ids, num_segments)
  gap_BT = spread(jnp.clip(gap_BG, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), segment_ids)
  return _clipped_surrogate(jnp.exp(gap_BT), advantages, clip_low, clip_high)


def gspo_token(
  logp_new, logp_old, advantages, *, mask, segment_ids, num_segments, clip_low, clip_high
):
  """GSPO whose advantages may differ from token to token: s_{i,t} = sg[s_i] pi / sg[pi].

  The value of the ratio is that of the sequence, its gradient that of the token's own log-prob.
  With one advantage a sequence, loss and gradient are `gspo`'s, whatever weight all tokens of the
  sequence share.
  Arguments and result as `gspo`. Source: Zheng et al. 2025 (GSPO), section 4.3, eq. 13-14.
  """
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  gap_BG = segment_mean(logp_new - logp_old, mask, segment_ids, num_segments)
  gap_BT = spread(jnp.clip(gap_BG, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), segment_ids)
  own_BT = jnp.exp(logp_new - jax.lax.stop_gradient(logp_new))  # 1, with the gradient of logp_new
  ratio_BT = jnp.exp(jax.lax.stop_gradient(gap_BT)) * own_BT
  return _clipped_surrogate(ratio_BT, advantages, clip_low, clip_high)


def dppo_tv(logp_new, logp_old, advantages, *, clip_low, clip_high):
  """The trust region on the change of a token's probability, not on its ratio (binary TV).

  L = -M A r, with M = 0 where A > 0 and pi - mu > clip_high, or A < 0 and mu - pi > clip_low, else
  1; pi and mu are the new and old probability of the sampled token, |pi - mu| the total variation
  between the two policies reduced to "this token or another". A rare token may thus grow
  many-fold, which a bound on the ratio forbids, and a common one may not lose a third of all
  probability, which it allows.

  Args:
    logp_new, logp_old, advantages: as `ppo_clip`.
    clip_low, clip_high: largest loss and gain of probability, in (0, 1); 0.2 in the paper's code.

  Source: Qi et al. 2026 (Rethinking the Trust Region in LLM RL, arXiv:2602.04879), DPPO-Binary-TV.
  """
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  ratio = jnp.exp(log_ratio(logp_new, logp_old))
  change = jax.lax.stop_gradient(jnp.exp(logp_new) - jnp.exp(logp_old))
  fell = (advantages < 0) & (change < -clip_low)
  rose = (advantages > 0) & (change > clip_high)
  return jnp.where(fell | rose, 0, -advantages * ratio), _aux(ratio, fell, rose)


def cispo(logp_new, logp_old, advantages, *, clip_high):
  """REINFORCE weighted by the capped importance ratio: no token loses its gradient.

  L = -stop_gradient(min(r, 1 + clip_high)) A logp_new; there is no lower bound.
  Source: MiniMax 2025 (MiniMax-M1).
  """
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  ratio = jnp.exp(log_ratio(logp_new, logp_old))
  weight = jax.lax.stop_gradient(jnp.minimum(ratio, 1 + clip_high))
  return -weight * advantages * logp_new, _aux(ratio, 0, ratio > 1 + clip_high)


def reinforce(logp_new, logp_old, advantages):
  """L = -A logp_new (Williams 1992); `logp_old` only feeds the reported ratio."""
  logp_new, logp_old, advantages = _floats(logp_new, logp_old, advantages)
  ratio = jnp.exp(log_ratio(logp_new, logp_old))
  return -advantages * logp_new, _aux(ratio, 0, 0)


POLICY_LOSSES = {
  "ppo": ppo_clip,
  "gspo": gspo,
  "gspo_token": gspo_token,
  "cispo": cispo,
  "dppo_tv": dppo_tv,
  "reinforce": reinforce,
}
# These also take `mask`, `segment_ids` and `num_segments`.
SEQUENCE_LOSSES = frozenset({"gspo", "gspo_token"})
