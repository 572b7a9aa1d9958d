"""The gated feed-forward layer."""

import functools
from collections.abc import Callable

import jax
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

  def __call__(self, x: jax.Array, c: DecoderConfig) -> jax.Array:
    gate, up = product(x, self.w_gate[...], c), product(x, self.w_up[...], c)
    hidden = (activation(c)(gate) * up).astype(x.dtype)
    return product_in_parts(hidden, self.w_down[...], c).astype(x.dtype)
