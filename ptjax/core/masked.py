"""Reductions over the true entries of a mask, safe in value and in gradient.

The double-where rule. A masked entry may hold anything, NaN and inf included (the log-prob of a
padding token, the advantage of an empty row). One `where` after a computation keeps NaN out of the
value but not out of the gradient, since the chain rule then multiplies 0 by NaN:

  x = [2, nan], mask = [1, 0]
  sum(where(mask, exp(x), 0))             value e^2,  gradient [e^2, nan]
  sum(where(mask, exp(fill(x, mask)), 0)) value e^2,  gradient [e^2, 0]

So inputs are filled before the computation (`fill`) and the result is reduced by a function of this
module, which masks again. Under `jit` the reductions of a sharded array run over the whole array:
no shard ever divides by its own count.

Letters: G segments of a packed row.
"""

import jax
import jax.numpy as jnp

# Numbers are constant when none is further from their mean than this times max(1, max|x|).
CONSTANT_TOLERANCE = 1e-6
# Added to a standard deviation, outside the root, before dividing by it.
STD_EPS = 1e-6


def as_float(x) -> jax.Array:
  """x in float32 or wider: reductions never run in bf16 or in integers."""
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def fill(x, mask, value=0.0) -> jax.Array:
  """x where mask is true, else `value`, with gradient exactly 0 there."""
  return jnp.where(mask, x, value)


def masked_count(mask, axis=None, keepdims: bool = False) -> jax.Array:
  """Number of true entries, i32."""
  return jnp.sum(jnp.asarray(mask) != 0, axis=axis, keepdims=keepdims, dtype=jnp.int32)


def masked_sum(x, mask, axis=None, keepdims: bool = False) -> jax.Array:
  """Sum of x over the true entries; 0 without any."""
  return jnp.sum(fill(as_float(x), mask), axis=axis, keepdims=keepdims)


def masked_mean(x, mask, axis=None, keepdims: bool = False) -> jax.Array:
  """Mean of x over the true entries; 0, with gradient 0, without any."""
  x = as_float(x)
  count = masked_count(jnp.broadcast_to(mask, x.shape), axis, keepdims)
  return masked_sum(x, mask, axis, keepdims) / jnp.maximum(count, 1).astype(x.dtype)


def masked_var(x, mask, axis=None, ddof: int = 1) -> jax.Array:
  """Variance of x over the true entries, centred before squaring.

  Args:
    x: numbers, any shape.
    mask: broadcastable to x.
    axis: axes to reduce, None for all.
    ddof: 1 for the sample variance, 0 for the population's.

  Returns:
    The variance; 0, with gradient 0, where fewer than `ddof + 1` entries are true.
  """
  x = fill(as_float(x), mask)
  squares = jnp.square(x - masked_mean(x, mask, axis, keepdims=True))
  count = masked_count(jnp.broadcast_to(mask, x.shape), axis)
  return masked_sum(squares, mask, axis) / jnp.maximum(count - ddof, 1).astype(x.dtype)


def masked_whiten(x, mask, eps: float = STD_EPS) -> jax.Array:
  """(x - mean) / (std + eps) over all true entries, std the sample deviation (ddof 1).

  Every true entry weighs the same, wherever its row or shard. False entries are 0 in the result.
  All of it is exactly 0 when the true entries are constant, `|x - mean| <= 1e-6 max(1, max|x|)`,
  or fewer than two: without this rule rounding noise would be blown up to unit variance.
  """
  x = fill(as_float(x), mask)
  centred = fill(x - masked_mean(x, mask), mask)
  constant = jnp.max(jnp.abs(centred), initial=0) <= CONSTANT_TOLERANCE * jnp.maximum(
    1, jnp.max(jnp.abs(x), initial=0)
  )
  # The root of a zero variance has an infinite derivative: the inner where keeps it out.
  std = jnp.sqrt(jnp.where(constant, 1, masked_var(x, mask)))
  return jnp.where(constant, 0, centred / (std + eps))


def segment_sum(x_BT, segment_ids_BT, num_segments: int) -> jax.Array:
  """Sum of every segment of every row, [B, num_segments]; ids lie in 0..num_segments-1."""
  sum_row = jax.vmap(lambda x_T, ids_T: jax.ops.segment_sum(x_T, ids_T, num_segments))
  return sum_row(x_BT, segment_ids_BT)


def segment_mean(x_BT, mask_BT, segment_ids_BT, num_segments: int) -> jax.Array:
  """Masked mean of every segment of every row, [B, num_segments]; 0 for an empty segment."""
  x_BT = as_float(x_BT)
  sums_BG = segment_sum(fill(x_BT, mask_BT), segment_ids_BT, num_segments)
  counts_BG = segment_sum(jnp.asarray(mask_BT, x_BT.dtype), segment_ids_BT, num_segments)
  return sums_BG / jnp.maximum(counts_BG, 1)


def spread(x_BG, segment_ids_BT) -> jax.Array:
  """The value of its segment at every token, [B, T]; an id out of range gives NaN."""
  return jnp.take_along_axis(x_BG, segment_ids_BT, axis=-1, mode="fill")
