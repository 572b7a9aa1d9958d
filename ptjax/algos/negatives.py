"""What is done with samples of negative advantage: a weight of their own, and a bound on drift.

Pushing a sample down has no lower end: where the policy has already left it, its log-prob runs off
while the ratio stays small and no clip acts. Both measures multiply the token loss by a constant.

Sources: Zhu et al. 2025 (The surprising effectiveness of negative reinforcement, arXiv:2506.01347,
weighted REINFORCE); DeepSeek-V3.2 2025 (off-policy sequence masking).
"""

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float, fill, segment_mean, spread


def sign_weights(advantages, positive: float, negative: float) -> jax.Array:
  """`positive` where A > 0, `negative` where A < 0, 1 where A = 0 (whose loss is 0 anyway)."""
  return jnp.where(advantages > 0, positive, jnp.where(advantages < 0, negative, 1.0))


def drift_mask(
  logp_new, logp_rollout, advantages, mask, *, segment_ids, num_segments, limit
) -> jax.Array:
  """0 on the negative tokens of the sequences that the policy has left, else 1; constant.

  The drift of a sequence is the mean over its tokens of logp_rollout - logp_new, the k1 estimate of
  KL(rollout || policy) per token. A masked sequence stays in every denominator.

  Args:
    logp_new, logp_rollout, advantages, mask: [B, T].
    segment_ids, num_segments: as `correction`.
    limit: largest drift, in nats a token.
  """
  gap = fill(as_float(logp_rollout), mask) - fill(as_float(logp_new), mask)
  drift = segment_mean(jax.lax.stop_gradient(gap), mask, segment_ids, num_segments)
  left = spread(drift > limit, segment_ids)
  return jnp.where(left & (advantages < 0), 0.0, 1.0)
