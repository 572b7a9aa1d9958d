"""Grouped-query attention with rotary positions: its parameters and its projections."""

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models.config import DecoderConfig
from ptjax.models.layers import Rotation, flat_inputs, norm, param, product, rope


class Attention(nnx.Module):
  """The projections before and after the scores; parameters of all layers of a stack."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int):
    c, lead, first = config, (num_layers,), ("layers",)
    init = nnx.initializers.normal(c.d_model**-0.5)
    query, kv = (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
    query_axes, kv_axes = ("heads", "head"), ("kv_heads", "head")
    self.wq = param(rngs, (*lead, c.d_model, *query), (*first, "embed", *query_axes), init)
    self.wk = param(rngs, (*lead, c.d_model, *kv), (*first, "embed", *kv_axes), init)
    self.wv = param(rngs, (*lead, c.d_model, *kv), (*first, "embed", *kv_axes), init)
    self.wo = param(rngs, (*lead, *query, c.d_model), (*first, *query_axes, "embed"), init)
    zeros, ones = nnx.initializers.zeros, nnx.initializers.ones
    if c.qkv_bias:
      self.bq = param(rngs, (*lead, *query), (*first, *query_axes), zeros)
      self.bk = param(rngs, (*lead, *kv), (*first, *kv_axes), zeros)
      self.bv = param(rngs, (*lead, *kv), (*first, *kv_axes), zeros)
    if c.out_bias:
      self.bo = param(rngs, (*lead, c.d_model), (*first, "embed"), zeros)
    if c.qk_norm:
      self.q_norm = param(rngs, (*lead, c.head_dim), (*first, "head"), ones)
      self.k_norm = param(rngs, (*lead, c.head_dim), (*first, "head"), ones)
    if c.sinks:
      self.sinks = param(rngs, (*lead, c.num_heads), (*first, "heads"), zeros)

  def qkv(self, x: jax.Array, by: Rotation, c: DecoderConfig):
    """x[..., D] to rotated queries [..., N, H], rotated keys and values [..., K, H]."""
    q, k, v = (product(x, w[...], c) for w in (self.wq, self.wk, self.wv))
    if c.qkv_bias:
      q, k, v = q + self.bq[...], k + self.bk[...], v + self.bv[...]
    q, k, v = (y.astype(x.dtype) for y in (q, k, v))
    if c.qk_norm:
      q, k = norm(q, self.q_norm[...], c), norm(k, self.k_norm[...], c)
    return rope(q, by), rope(k, by), v

  def sink(self, c: DecoderConfig) -> jax.Array | None:
    """f32[N], see `kernels.attention`."""
    return self.sinks[...].astype(jnp.float32) if c.sinks else None

  def out(self, heads: jax.Array, c: DecoderConfig) -> jax.Array:
    """heads[..., N, H] back to the residual width."""
    # Merged by hand: an einsum over both axes makes XLA transpose the weights each time.
    flat = heads.reshape(*heads.shape[:-2], -1)
    wo = flat_inputs(self.wo[...], 2, c)
    y = product(flat, wo, c)
    return (y + self.bo[...] if c.out_bias else y).astype(heads.dtype)
