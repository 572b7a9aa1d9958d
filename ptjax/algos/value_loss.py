"""Value loss of PPO, per token, and how much of the returns the critic explains."""

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float, fill, masked_count, masked_var


def value_loss(values, old_values, returns, *, clip: float | None = None):
  """L = 0.5 max((v - R)^2, (v_clip - R)^2), v_clip = v_old + clip(v - v_old, -clip, clip).

  The update is bounded around the *old values*; `clip=None` is the plain L = 0.5 (v - R)^2. Loss of
  a batch: `aggregate.weighted_sum`, after the masked entries were filled.

  Args:
    values: predictions being trained, any shape, float32.
    old_values: predictions when the trajectories were collected, constant.
    returns: value targets, constant.
    clip: half-width of the interval, > 0, or None.

  Returns:
    (loss_tokens, aux); aux["clipped"] is 1 where |v - v_old| > clip.

  Raises:
    ValueError: clip <= 0.
  """
  errors = jnp.square(values - returns)
  if clip is None:
    return 0.5 * errors, {"clipped": jnp.zeros_like(errors)}
  if not clip > 0:
    raise ValueError(f"value clip must be > 0, got {clip}; use None for no clipping")
  step = values - old_values
  clipped_errors = jnp.square(old_values + jnp.clip(step, -clip, clip) - returns)
  clipped = jax.lax.stop_gradient(jnp.abs(step) > clip).astype(errors.dtype)
  return 0.5 * jnp.maximum(errors, clipped_errors), {"clipped": clipped}


def explained_variance(values, returns, mask) -> jax.Array:
  """1 - Var(returns - values) / Var(returns) over the true entries: 1 perfect, 0 a constant.

  Returns:
    f32 scalar; NaN when the returns are all equal or fewer than two.
  """
  values, returns = fill(as_float(values), mask), fill(as_float(returns), mask)
  # Equal returns are found by comparison: their computed variance may be a rounding error.
  equal = jnp.max(returns, initial=-jnp.inf, where=mask != 0) == jnp.min(
    returns, initial=jnp.inf, where=mask != 0
  )
  defined = (masked_count(mask) > 1) & ~equal
  ratio = masked_var(returns - values, mask) / jnp.where(defined, masked_var(returns, mask), 1)
  return jnp.where(defined, 1 - ratio, jnp.nan)
