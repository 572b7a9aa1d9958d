"""Losses and updates that keep the experts of a mixture in use.

All are functions of sums over the tokens of the global batch, so that padding, packing and
micro-batches leave them unchanged. A layer's counts sum to tokens times experts a token (X).

Letters: L layers with experts, E experts.
"""

import jax
import jax.numpy as jnp


def balance_loss(counts_LE: jax.Array, probs_LE: jax.Array, tokens: jax.Array) -> jax.Array:
  """sum over layers of E * sum_e f_e P_e; 1 for each layer where the load is even.

  f_e is the share of the choices that fell on the expert, P_e the mean of its probability. Only
  the probabilities carry a gradient. It is a sum over tokens in P: with the counts and tokens of
  the global batch, the losses of micro-batches add up to that of the batch.

  Args:
    counts_LE: f32, choices of each expert in the global batch; constant.
    probs_LE: f32, sum of the probabilities over the tokens of the micro-batch.
    tokens: f32[], of the global batch.

  Source: Fedus et al., 2022 (Switch), eq. 4 to 6; over the global batch: Qiu et al., 2025.
  """
  counts_LE = jax.lax.stop_gradient(counts_LE)
  share_LE = counts_LE / jnp.maximum(jnp.sum(counts_LE, axis=-1, keepdims=True), 1)
  return counts_LE.shape[-1] * jnp.sum(share_LE * probs_LE) / jnp.maximum(tokens, 1)


def z_loss(z_L: jax.Array, tokens: jax.Array) -> jax.Array:
  """sum over layers of the mean over tokens of logsumexp(router logits)^2.

  Args:
    z_L: f32, sum of the squares over the tokens of the micro-batch.
    tokens: f32[], of the global batch.

  Source: Zoph et al., 2022 (ST-MoE), eq. 5.
  """
  return jnp.sum(z_L) / jnp.maximum(tokens, 1)


def corrected(correction_LE: jax.Array, counts_LE: jax.Array, rate: float | jax.Array) -> jax.Array:
  """correction + rate * sign(mean load - load): experts in little use are chosen more often.

  Source: Wang et al., 2024 (auxiliary-loss-free load balancing), algorithm 1; DeepSeek-V3, 2024,
  section 2.1.2.
  """
  mean_L1 = jnp.mean(counts_LE, axis=-1, keepdims=True)
  return correction_LE + rate * jnp.sign(mean_L1 - counts_LE)


def load_statistics(counts_LE: jax.Array) -> dict[str, jax.Array]:
  """Of each layer the entropy of its load in nats, log E where even, and the largest share."""
  share_LE = counts_LE / jnp.maximum(jnp.sum(counts_LE, axis=-1, keepdims=True), 1)
  log_LE = jnp.log(jnp.where(share_LE > 0, share_LE, 1))
  return {"entropy": -jnp.sum(share_LE * log_LE, axis=-1), "max_share": jnp.max(share_LE, axis=-1)}
