"""The gated feed-forward layer."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models.config import DecoderConfig
from ptjax.models.layers import param, product, product_in_parts


def activation(c: DecoderConfig) -> Callable[[jax.Array], jax.Array]:
  """The gate's activation."""
  return jax.nn.silu if c.activation == "silu" else functools.partial(jax.nn.gelu, approximate=True)


class GatedMlp(nnx.Module):
  """(act(x W_gate) * x W_up) W_down (Shazeer, 2020); parameters of all layers of a stack."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int, d_ff: int):
    c, lead, first = config, (num_layers,), ("layers",)
    init = nnx.initializers.normal(c.d_model**-0.5)
    self.w_gate = param(rngs, (*lead, c.d_model, d_ff), (*first, "embed", "ff"), init)
    self.w_up = param(rngs, (*lead, c.d_model, d_ff), (*first, "embed", "ff"), init)
    self.w_down = param(rngs, (*lead, d_ff, c.d_model), (*first, "ff", "embed"), init)

  def __call__(self, x: jax.Array, c: DecoderConfig, shards: int = 1) -> jax.Array:
    """`shards`: devices over which the tokens of x[..., T, D] are cut."""
    if c.ff_chunk is None or x.ndim != 3 or x.shape[1] <= shards * c.ff_chunk:
      return self._all(x, c)
    return in_chunks(lambda x: self._all(x, c), x, c.ff_chunk, shards)

  def _all(self, x: jax.Array, c: DecoderConfig) -> jax.Array:
    gate, up = product(x, self.w_gate[...], c), product(x, self.w_up[...], c)
    hidden = (activation(c)(gate) * up).astype(x.dtype)
    return product_in_parts(hidden, self.w_down[...], c).astype(x.dtype)


def in_chunks(function: Callable, x_BTD: jax.Array, chunk: int, shards: int) -> jax.Array:
  """A function of each token, of `chunk` tokens of every shard at a time, forward and backward.

  It is given x[B, R, C, D], R the shards: a piece is never moved between devices.
  """
  rows, length, width = x_BTD.shape
  x_BRTD = x_BTD.reshape(rows, shards, length // shards, width)
  x_BRTD = jnp.pad(x_BRTD, ((0, 0), (0, 0), (0, -x_BRTD.shape[2] % chunk), (0, 0)))
  pieces = jnp.moveaxis(x_BRTD.reshape(rows, shards, -1, chunk, width), 2, 0)
  out = jnp.moveaxis(jax.lax.map(jax.checkpoint(function), pieces), 0, 2)
  out = out.reshape(rows, shards, -1, width)[:, :, : length // shards]
  return out.reshape(rows, length, width)
