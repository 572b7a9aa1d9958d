"""The decoder: token ids to final hidden states; the heads are apart (`heads.py`).

Every parameter of the blocks has a leading axis over the layers and the forward pass
scans over it, so that compile time does not grow with depth.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.kernels.attention import attention
from ptjax.kernels.mask import MaskSpec
from ptjax.models.config import DecoderConfig
from ptjax.models.layers import Rotation, param, product, product_in_parts, rms_norm, rope, rotation

Params = dict[str, Any]  # nested dict of arrays, the layout of `Decoder`
Constrain = Callable[[jax.Array, tuple[str | None, ...]], jax.Array]


_ROW_AXES = ("batch", "length")
_CAUSAL = MaskSpec()


def unconstrained(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """The `Constrain` of an unsharded run."""
  del axes
  return x


class Packed(NamedTuple):
  """Token rows as the decoder reads them; see `kernels.attention` for the ids."""

  tokens_BT: jax.Array
  positions_BT: jax.Array
  segment_ids_BT: jax.Array
  branch_ids_BT: jax.Array


class Attention(nnx.Module):
  """Grouped-query attention with rotary positions; parameters of all layers."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    c, lead, first = config, (config.num_layers,), ("layers",)
    init = nnx.initializers.normal(c.d_model**-0.5)
    kv = (c.d_model, c.num_kv_heads, c.head_dim)
    self.wq = param(
      rngs, (*lead, c.d_model, c.num_heads, c.head_dim), (*first, "embed", "heads", "head"), init
    )
    self.wk = param(rngs, lead + kv, (*first, "embed", "kv_heads", "head"), init)
    self.wv = param(rngs, lead + kv, (*first, "embed", "kv_heads", "head"), init)
    self.wo = param(
      rngs, (*lead, c.num_heads, c.head_dim, c.d_model), (*first, "heads", "head", "embed"), init
    )

  def qkv(self, x: jax.Array, by: Rotation, c: DecoderConfig):
    """x[..., D] to rotated queries [..., N, H], rotated keys and values [..., K, H]."""
    q, k, v = (product(x, w[...], c).astype(x.dtype) for w in (self.wq, self.wk, self.wv))
    return rope(q, by), rope(k, by), v

  def out(self, heads: jax.Array, c: DecoderConfig) -> jax.Array:
    """heads[..., N, H] back to the residual width."""
    # Merged by hand: an einsum over both axes makes XLA transpose the weights each time.
    flat = heads.reshape(*heads.shape[:-2], -1)
    wo = self.wo[...].reshape((c.d_model, -1) if c.out_first else (-1, c.d_model))
    return product(flat, wo, c).astype(heads.dtype)


class GatedMlp(nnx.Module):
  """(silu(x W_gate) * x W_up) W_down (Shazeer, 2020); parameters of all layers."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    c, lead, first = config, (config.num_layers,), ("layers",)
    init = nnx.initializers.normal(c.d_model**-0.5)
    self.w_gate = param(rngs, (*lead, c.d_model, c.d_ff), (*first, "embed", "ff"), init)
    self.w_up = param(rngs, (*lead, c.d_model, c.d_ff), (*first, "embed", "ff"), init)
    self.w_down = param(rngs, (*lead, c.d_ff, c.d_model), (*first, "ff", "embed"), init)

  def __call__(self, x: jax.Array, c: DecoderConfig) -> jax.Array:
    gate, up = product(x, self.w_gate[...], c), product(x, self.w_up[...], c)
    hidden = (jax.nn.silu(gate) * up).astype(x.dtype)
    return product_in_parts(hidden, self.w_down[...], c).astype(x.dtype)


class Norm(nnx.Module):
  """The scale of an RMSNorm, with or without a leading layer axis."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, *, stacked: bool):
    lead, first = ((config.num_layers,), ("layers",)) if stacked else ((), ())
    self.scale = param(rngs, (*lead, config.d_model), (*first, "embed"), nnx.initializers.ones)

  def __call__(self, x: jax.Array, c: DecoderConfig) -> jax.Array:
    return rms_norm(x, self.scale[...], c.norm_eps)


class Block(nnx.Module):
  """One pre-norm block; built with the parameters of all layers, called with one layer's."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    self.attn_norm = Norm(config, rngs, stacked=True)
    self.attn = Attention(config, rngs)
    self.mlp_norm = Norm(config, rngs, stacked=True)
    self.mlp = GatedMlp(config, rngs)

  def __call__(self, x: jax.Array, by: Rotation, attend: Callable, c: DecoderConfig):
    """`attend(q, k, v) -> (heads, kept)` is packed attention, or the cache in decoding."""
    heads, kept = attend(*self.attn.qkv(self.attn_norm(x, c), by, c))
    x = x + self.attn.out(heads, c)
    return x + self.mlp(self.mlp_norm(x, c), c), kept


def _remat(block: Callable, kind: str) -> Callable:
  if kind == "none":
    return block
  policies = jax.checkpoint_policies
  policy = policies.dots_with_no_batch_dims_saveable if kind == "dots" else None
  return jax.checkpoint(block, policy=policy, prevent_cse=False)  # scan keeps it apart


class Embedding(nnx.Module):
  """The token table [V, D]."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    init = nnx.initializers.normal(config.d_model**-0.5)
    self.table = param(rngs, (config.vocab_size, config.d_model), ("vocab", "embed"), init)


class LmHead(nnx.Module):
  """The output projection [D, V] where it is not the token table."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    init = nnx.initializers.normal(config.d_model**-0.5)
    self.w = param(rngs, (config.d_model, config.vocab_size), ("embed", "vocab"), init)


class Decoder(nnx.Module):
  """Token ids to final, normalised hidden states."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
    self.config = config
    self.embed = Embedding(config, rngs)
    self.layers = Block(config, rngs)
    self.final_norm = Norm(config, rngs, stacked=False)
    if not config.tie_embeddings:
      self.lm_head = LmHead(config, rngs)

  def __call__(
    self,
    packed: Packed,
    *,
    mask_spec: MaskSpec = _CAUSAL,
    constrain: Constrain = unconstrained,
    keep_kv: bool = False,
  ) -> Any:
    """Hidden states hidden_BTD; with `keep_kv` also the rotated keys and values LBTKH."""
    c = self.config
    graph, layers = nnx.split(self.layers)
    rows, length = packed.tokens_BT.shape
    lead, axes = ((rows * length,), ("batch",)) if c.merge_rows else ((rows, length), _ROW_AXES)
    by = rotation(packed.positions_BT.reshape(lead), c.head_dim, c.rope_theta)

    def attend(q, k, v):
      q_BTNH, k_BTKH, v_BTKH = (x.reshape(rows, length, *x.shape[-2:]) for x in (q, k, v))
      out_BTNH = attention(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        mask_spec=mask_spec,
        segment_ids_BT=packed.segment_ids_BT,
        branch_ids_BT=packed.branch_ids_BT,
        positions_BT=packed.positions_BT,
        implementation=c.attention,
      )
      return out_BTNH.reshape(q.shape), (k_BTKH, v_BTKH) if keep_kv else None

    def block(x, layer):
      x, kv = nnx.merge(graph, layer)(x, by, attend, c)
      return constrain(x, (*axes, None)), kv

    x = constrain(self.embed_tokens(packed.tokens_BT.reshape(lead)), (*axes, None))
    x, kv = jax.lax.scan(_remat(block, c.remat), x, layers)
    hidden_BTD = self.final_norm(x, c).reshape(rows, length, c.d_model)
    return (hidden_BTD, kv) if keep_kv else hidden_BTD

  def embed_tokens(self, tokens: jax.Array) -> jax.Array:
    """Rows of the token table, in the activation dtype."""
    return self.embed.table[...][tokens].astype(self.config.activation_dtype)


def init_params(config: DecoderConfig, key: jax.Array) -> Params:
  """Random parameters: normal with standard deviation 1/sqrt(d_model), norms at 1."""
  return nnx.to_pure_dict(nnx.state(Decoder(config, nnx.Rngs(params=key))))


def abstract(config: DecoderConfig) -> Decoder:
  """The decoder with `jax.ShapeDtypeStruct` leaves: nothing is allocated."""
  return nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))


def bind(config: DecoderConfig, params: Params) -> Decoder:
  """The decoder over given parameters; cheap, and traceable."""
  return nnx.merge(nnx.graphdef(abstract(config)), params)


def logical_axes(config: DecoderConfig) -> Params:
  """For each parameter the tuple of its logical axes, in the layout of the parameters."""
  state = nnx.state(abstract(config))
  axes = jax.tree.map(
    lambda v: v.get_metadata("axes"), state, is_leaf=lambda v: isinstance(v, nnx.Variable)
  )
  return nnx.to_pure_dict(axes)


def check_params(config: DecoderConfig, params: Params) -> None:
  """Raises ValueError naming the first parameter whose presence or shape is wrong."""
  want = dict(jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(abstract(config)))))
  have = dict(jax.tree_util.tree_leaves_with_path(params))
  for path in want.keys() ^ have.keys():
    state = "missing from" if path in want else "unknown to"
    raise ValueError(f"parameter {jax.tree_util.keystr(path)} is {state} this model")
  for path, value in have.items():
    if jnp.shape(value) != want[path].shape:
      raise ValueError(
        f"parameter {jax.tree_util.keystr(path)} has shape {jnp.shape(value)}, "
        f"the configuration wants {want[path].shape}"
      )
