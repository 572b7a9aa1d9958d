"""Importance weights for the gap between the sampler and the trainer.

rho = exp(logp_old - logp_rollout), clipped to exp(+-20): the proximal policy (the trainer's weights
before this update) over the policy that drew the token. It never involves the policy being trained;
that is the ratio of the policy loss, and the weight multiplies the token loss exactly once.

Weights are constants, of the shape of the mask and 0 outside it. A dropped token or sequence has
weight 0 and stays in every denominator: dropping must not make the others count more.

Sequence-level corrections take `segment_ids` (i32[B, T], the sequence of each token within its
packed row, in 0..num_segments-1) and `num_segments`; one sequence a row is zeros and 1.
"""

import jax
import jax.numpy as jnp

from ptjax.algos.policy_loss import LOG_RATIO_LIMIT, log_ratio
from ptjax.core.masked import (
  as_float,
  fill,
  masked_count,
  masked_mean,
  masked_sum,
  segment_mean,
  segment_sum,
  spread,
)


def _log_rho(logp_old, logp_rollout, mask) -> jax.Array:
  """Constant log rho, clipped, 0 outside the mask."""
  gap = log_ratio(fill(as_float(logp_old), mask), fill(as_float(logp_rollout), mask))
  return jax.lax.stop_gradient(gap)


def _log_gap(logp_old, logp_rollout, mask) -> jax.Array:
  """As `_log_rho` before clipping, for sums and means over a sequence."""
  gap = fill(as_float(logp_old), mask) - fill(as_float(logp_rollout), mask)
  return jax.lax.stop_gradient(gap)


def tis_token(logp_old, logp_rollout, mask, *, cap) -> jax.Array:
  """Truncated importance sampling: min(rho, cap). Source: Yao et al. 2025 (off-policy RL), TIS."""
  return fill(jnp.minimum(jnp.exp(_log_rho(logp_old, logp_rollout, mask)), cap), mask)


def icepop(logp_old, logp_rollout, mask, *, low, high) -> jax.Array:
  """rho where low <= rho <= high, else 0. Source: Ling team 2025 (IcePop)."""
  rho = jnp.exp(_log_rho(logp_old, logp_rollout, mask))
  return fill(jnp.where((rho >= low) & (rho <= high), rho, 0), mask)


def seq_tis(logp_old, logp_rollout, mask, *, segment_ids, num_segments, cap) -> jax.Array:
  """min(product of rho over the sequence, cap) on each of its tokens."""
  gap_BG = segment_sum(_log_gap(logp_old, logp_rollout, mask), segment_ids, num_segments)
  rho_BG = jnp.exp(jnp.clip(gap_BG, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
  return fill(spread(jnp.minimum(rho_BG, cap), segment_ids), mask)


def seq_mask_geo(
  logp_old, logp_rollout, mask, *, segment_ids, num_segments, low, high
) -> jax.Array:
  """1 on the sequences whose geometric mean of rho lies in [low, high], else 0."""
  gap = _log_gap(logp_old, logp_rollout, mask)
  rho_BG = jnp.exp(segment_mean(gap, mask, segment_ids, num_segments))
  keep_BG = ((rho_BG >= low) & (rho_BG <= high)).astype(gap.dtype)
  return fill(spread(keep_BG, segment_ids), mask)


def seq_mask_token_range(
  logp_old, logp_rollout, mask, *, segment_ids, num_segments, low, high
) -> jax.Array:
  """1 on the sequences of which every token has low <= rho <= high, else 0."""
  rho = jnp.exp(_log_rho(logp_old, logp_rollout, mask))
  outside = fill(((rho < low) | (rho > high)).astype(rho.dtype), mask)
  keep_BG = (segment_sum(outside, segment_ids, num_segments) == 0).astype(rho.dtype)
  return fill(spread(keep_BG, segment_ids), mask)


CORRECTIONS = {
  "tis_token": tis_token,
  "icepop": icepop,
  "seq_tis": seq_tis,
  "seq_mask_geo": seq_mask_geo,
  "seq_mask_token_range": seq_mask_token_range,
}
# These also take `segment_ids` and `num_segments`.
SEQUENCE_CORRECTIONS = frozenset({"seq_tis", "seq_mask_geo", "seq_mask_token_range"})


def effective_sample_size(weights, mask) -> tuple[jax.Array, jax.Array]:
  """(sum w)^2 / sum w^2 over the true entries, and that as a share of their number.

  Both 0 when every weight is 0 or there is no entry. Source: Kong 1992.
  """
  total, squares = masked_sum(weights, mask), masked_sum(jnp.square(fill(weights, mask)), mask)
  ess = jnp.where(squares > 0, jnp.square(total) / jnp.where(squares > 0, squares, 1), 0)
  return ess, ess / jnp.maximum(masked_count(mask), 1).astype(ess.dtype)


def mismatch_tokens(logp_old, logp_rollout, mask) -> dict[str, jax.Array]:
  """Per token, for tokens drawn by the rollout policy, x = log rho: estimates of
  KL(rollout||trainer) `kl_k1` = -x and `kl_k3` = exp(x) - 1 - x, and `ratio` = rho.

  Reduce them as sum and count over the global batch; 0 outside the mask.
  """
  x = _log_rho(logp_old, logp_rollout, mask)
  tokens = {"kl_k1": -x, "kl_k3": jnp.expm1(x) - x, "ratio": jnp.exp(x)}
  return {name: fill(value, mask) for name, value in tokens.items()}


def mismatch(logp_old, logp_rollout, mask) -> dict[str, jax.Array]:
  """Means over the true entries of `mismatch_tokens`, and the largest ratio (0 without entries)."""
  tokens = mismatch_tokens(logp_old, logp_rollout, mask)
  return {
    "kl_k1": masked_mean(tokens["kl_k1"], mask),
    "kl_k3": masked_mean(tokens["kl_k3"], mask),
    "ratio_mean": masked_mean(tokens["ratio"], mask),
    "ratio_max": jnp.max(tokens["ratio"], initial=0),
  }
