"""Stochastic rounding to narrow floating-point types."""

import jax
import jax.numpy as jnp

_MANTISSA = {"bfloat16": 7, "float8_e4m3fn": 3}


def stochastic(x: jax.Array, dtype: str, key: jax.Array) -> jax.Array:
  """x rounded up or down with probabilities that make its expectation x.

  Random bits are added to the part of the float32 mantissa that is then cut off; numbers below
  the smallest normal one of `dtype` are rounded to the nearest.

  Source: Gupta et al., 2015, section 3.1.

  Args:
    x: f32, within the range of `dtype`.
    dtype: bfloat16 or float8_e4m3fn.
    key: of these numbers alone.
  """
  cut = 23 - _MANTISSA[dtype]
  mask = jnp.uint32(2**cut - 1)
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  noisy = (bits + (jax.random.bits(key, x.shape, jnp.uint32) & mask)) & ~mask
  return jax.lax.bitcast_convert_type(noisy, jnp.float32).astype(dtype)


def keys_like(tree, count: jax.Array):
  """A key for each leaf: of its place in the tree and the number of the update."""
  leaves, structure = jax.tree.flatten(tree)
  base = jax.random.fold_in(jax.random.key(0), count)
  return structure.unflatten([jax.random.fold_in(base, i) for i in range(len(leaves))])
