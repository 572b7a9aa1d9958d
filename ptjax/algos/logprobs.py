"""Log-probabilities and entropies from logits, the same for sampler and trainer.

Temperature divides the logits before the softmax, `log_softmax(logits / temperature)`. From the
logits on everything is float32 or wider, whatever dtype the model computes in.

Letters: C candidates, the token ids that a filtered sampler could have drawn.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float, fill


def _check_temperature(temperature: float) -> None:
  if not temperature > 0:
    raise ValueError(
      f"temperature must be > 0, got {temperature}; a greedy policy has no log-probabilities"
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _logp_and_entropy(logits_V, targets, temperature: float, with_entropy: bool):
  """(logp, entropy); entropy is None unless asked for, so nothing is computed for it."""
  return _forward(logits_V, targets, temperature, with_entropy)[0]


def _forward(logits_V, targets, temperature, with_entropy):
  z_V = as_float(logits_V) / temperature
  top = jnp.max(z_V, axis=-1, keepdims=True)
  shifted_V = z_V - top
  exp_V = jnp.exp(shifted_V)
  total = jnp.sum(exp_V, axis=-1)
  log_total = jnp.log(total)
  target = jnp.take_along_axis(shifted_V, targets[..., None], axis=-1)[..., 0]
  entropy = None
  if with_entropy:
    # 0 * log 0 = 0: a logit of -inf has probability 0 and adds nothing.
    weighted = jnp.where(exp_V > 0, exp_V * shifted_V, 0)
    entropy = log_total - jnp.sum(weighted, axis=-1) / total
  lse = log_total + top[..., 0]
  return (target - log_total, entropy), (logits_V, targets, lse, entropy)


def _backward(temperature, with_entropy, residuals, cotangents):
  """Closed form in one elementwise pass: no scatter for the target, no saved softmax.

  d logp / d z_v = 1[v = target] - p_v;  d H / d z_v = -p_v (log p_v + H).
  """
  logits_V, targets, lse, entropy = residuals
  logp_bar, entropy_bar = cotangents
  logp_V = as_float(logits_V) / temperature - lse[..., None]
  p_V = jnp.exp(logp_V)
  is_target_V = jax.lax.broadcasted_iota(targets.dtype, logp_V.shape, logp_V.ndim - 1)
  is_target_V = is_target_V == targets[..., None]
  grad_V = logp_bar[..., None] * (is_target_V - p_V)
  if with_entropy:
    slope_V = jnp.where(p_V > 0, p_V * (logp_V + entropy[..., None]), 0)
    grad_V -= entropy_bar[..., None] * slope_V
  grad_V = (grad_V / temperature).astype(logits_V.dtype)
  return grad_V, None


_logp_and_entropy.defvjp(_forward, _backward)


def token_logprobs(logits_V, targets, temperature: float = 1.0) -> jax.Array:
  """log_softmax(logits / temperature) at the target.

  Args:
    logits_V: [..., V], any float dtype; -inf is a token of probability 0.
    targets: i32[...], ids in 0..V-1.
    temperature: > 0, a Python number (static under jit).

  Returns:
    f32[...] (f64 for f64 logits), natural logarithm.

  Raises:
    ValueError: temperature <= 0.
  """
  _check_temperature(temperature)
  return _logp_and_entropy(logits_V, targets, temperature, False)[0]


def logprobs_and_entropy(logits_V, targets, temperature: float = 1.0):
  """`token_logprobs` and the entropy in nats of softmax(logits / temperature), from one pass.

  H = log sum_v exp(z_v) - sum_v p_v z_v, with 0 log 0 = 0. Arguments and errors as
  `token_logprobs`; differentiable in reverse mode.

  Returns:
    (logp, entropy), f32[...] each.
  """
  _check_temperature(temperature)
  return _logp_and_entropy(logits_V, targets, temperature, True)


def support_logprobs(logits_V, targets, support_C, temperature: float = 1.0) -> jax.Array:
  """Log-probability renormalised over the ids that a filtered sampler could choose from.

  logp = z_y - log sum_{v in support} exp(z_v), z = logits / temperature. A sampler with top-k or
  top-p reports this quantity; comparing it with the full softmax would bias every importance ratio
  by the removed mass.

  Args:
    logits_V: [..., V].
    targets: i32[...].
    support_C: i32[..., C], distinct ids, padded with -1.
    temperature: > 0.

  Returns:
    f32[...]; -inf, with gradient 0, where the target is outside the support.

  Raises:
    ValueError: temperature <= 0.
  """
  _check_temperature(temperature)
  real_C = support_C >= 0
  z_C = jnp.take_along_axis(as_float(logits_V), fill(support_C, real_C, 0), axis=-1) / temperature
  # The target is found among the candidates, so that an id outside them is never read.
  is_target_C = real_C & (support_C == targets[..., None])
  lse = jax.nn.logsumexp(jnp.where(real_C, z_C, -jnp.inf), axis=-1)
  inside = jnp.any(is_target_C, axis=-1)
  logp = jnp.sum(fill(z_C, is_target_C), axis=-1) - fill(lse, inside)
  return jnp.where(inside, logp, -jnp.inf)


def next_token_targets(tokens_BT, mask_BT) -> tuple[jax.Array, jax.Array]:
  """Targets and mask of the predictions, aligned with the logits that make them.

  Logits at position j predict token j+1, which counts when mask[j+1] is set. One row of T = 5:

    tokens   p0 p1 a2 a3 o4     mask       0  0  1  1  0
    targets  p1 a2 a3 o4        pred_mask  0  1  1  0

  Returns:
    (targets i32[B, T-1], pred_mask bool[B, T-1]); mask[0] has no prediction.
  """
  return jnp.asarray(tokens_BT)[:, 1:], jnp.asarray(mask_BT)[:, 1:] != 0


def next_token_logprobs_and_entropy(logits_BTV, tokens_BT, mask_BT, temperature: float = 1.0):
  """Log-prob of every masked token given those before it, and the entropy it was drawn with.

  Logits whose next token is not in the mask, and the last ones, are never read: they may hold NaN.

  Args:
    logits_BTV: the model's outputs at every input position.
    tokens_BT: the input ids.
    mask_BT: marks the tokens to score.
    temperature: > 0.

  Returns:
    (logp f32[B, T-1], entropy f32[B, T-1], pred_mask bool[B, T-1]), 0 where pred_mask is false.
  """
  targets, pred_mask = next_token_targets(tokens_BT, mask_BT)
  logits = fill(logits_BTV[:, :-1], pred_mask[..., None])
  logp, entropy = logprobs_and_entropy(logits, targets, temperature)
  return fill(logp, pred_mask), fill(entropy, pred_mask), pred_mask
