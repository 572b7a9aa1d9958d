"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): keys and values from one latent.

Keys and values are expanded before the scores and cached expanded; caching the latent itself,
with the expansion absorbed into queries and outputs, would take less memory.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models.config import DecoderConfig
from ptjax.models.layers import Rotation, flat_inputs, param, product, rms_norm, rope

_EPS = 1e-6  # of the latents' norms, whatever the model's


class LatentAttention(nnx.Module):
  """As `Attention`; parameters of all layers of a stack."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int):
    c, m, lead, first = config, config.latents, (num_layers,), ("layers",)
    init, ones = nnx.initializers.normal(c.d_model**-0.5), nnx.initializers.ones
    heads = ("heads", "head")
    inputs, axis = (m.query_rank, "latent") if m.query_rank else (c.d_model, "embed")
    if m.query_rank:
      self.wq_down = param(
        rngs, (*lead, c.d_model, m.query_rank), (*first, "embed", "latent"), init
      )
      self.q_norm = param(rngs, (*lead, m.query_rank), (*first, "latent"), ones)
    self.wq = param(rngs, (*lead, inputs, c.num_heads, c.head_dim), (*first, axis, *heads), init)
    self.wkv_down = param(
      rngs, (*lead, c.d_model, m.kv_rank + m.rope_dim), (*first, "embed", "latent"), init
    )
    self.kv_norm = param(rngs, (*lead, m.kv_rank), (*first, "latent"), ones)
    self.wkv = param(
      rngs,
      (*lead, m.kv_rank, c.num_heads, m.nope_dim + m.value_dim),
      (*first, "latent", *heads),
      init,
    )
    self.wo = param(
      rngs, (*lead, c.num_heads, m.value_dim, c.d_model), (*first, *heads, "embed"), init
    )

  def qkv(self, x: jax.Array, by: Rotation, c: DecoderConfig):
    """x[..., D] to queries and keys [..., N, nope + rope] and values [..., N, value]."""
    m = c.latents
    source = x
    if m.query_rank:
      source = rms_norm(product(x, self.wq_down[...], c), self.q_norm[...], _EPS).astype(x.dtype)
    q = product(source, self.wq[...], c).astype(x.dtype)
    down = product(x, self.wkv_down[...], c)
    latent = rms_norm(down[..., : m.kv_rank], self.kv_norm[...], _EPS).astype(x.dtype)
    kv = product(latent, self.wkv[...], c).astype(x.dtype)
    k_rotated = self._rope(down[..., None, m.kv_rank :].astype(x.dtype), by, c)
    k_rotated = jnp.broadcast_to(k_rotated, (*kv.shape[:-1], m.rope_dim))
    q = [q[..., : m.nope_dim], self._rope(q[..., m.nope_dim :], by, c)]
    k = [kv[..., : m.nope_dim], k_rotated]
    return jnp.concatenate(q, -1), jnp.concatenate(k, -1), kv[..., m.nope_dim :]

  def _rope(self, x: jax.Array, by: Rotation, c: DecoderConfig) -> jax.Array:
    if c.latents.interleaved:  # the order within a head is free, if queries and keys share it
      x = jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    return rope(x, by)

  def sink(self, c: DecoderConfig) -> None:
    del c

  def out(self, heads: jax.Array, c: DecoderConfig) -> jax.Array:
    """heads[..., N, value] back to the residual width."""
    flat = heads.reshape(*heads.shape[:-2], -1)
    wo = flat_inputs(self.wo[...], 2, c)
    return product(flat, wo, c).astype(heads.dtype)
