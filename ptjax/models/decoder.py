"""The decoder: token ids to final hidden states; the heads are apart (`heads.py`).

Every parameter of the blocks has a leading axis over the layers of its stack and the forward
pass scans over it, so that compile time does not grow with depth. Layers of one stack have
equal shapes; their windows and rotary embeddings, where they differ, are scanned with them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.kernels.mask import MaskSpec
from ptjax.models.attention import Attention
from ptjax.models.config import DecoderConfig
from ptjax.models.experts import ALONE, Experts, Told
from ptjax.models.feedforward import GatedMlp
from ptjax.models.forward_pass import Constrain, ForwardPass, Packed, context_of, unconstrained
from ptjax.models.latent import LatentAttention
from ptjax.models.layers import Rotation, norm, param

Params = dict[str, Any]  # nested dict of arrays, the layout of `Decoder`


class Norm(nnx.Module):
  """The scale of an RMSNorm, with or without a leading layer axis."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int | None = None):
    lead, first = ((), ()) if num_layers is None else ((num_layers,), ("layers",))
    init = nnx.initializers.zeros if config.norm_offset else nnx.initializers.ones
    self.scale = param(rngs, (*lead, config.d_model), (*first, "embed"), init)

  def __call__(self, x: jax.Array, c: DecoderConfig) -> jax.Array:
    return norm(x, self.scale[...], c)


class Block(nnx.Module):
  """One pre-norm block; built with the parameters of a stack, called with one layer's."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int, *, dense: bool):
    c, n = config, num_layers
    self.attn_norm = Norm(c, rngs, n)
    self.attn = Attention(c, rngs, n) if c.latent is None else LatentAttention(c, rngs, n)
    self.mlp_norm = Norm(c, rngs, n)
    self.mlp = GatedMlp(c, rngs, n, c.d_ff) if dense else Experts(c, rngs, n)
    if c.post_norms:
      self.attn_post_norm = Norm(c, rngs, n)
      self.mlp_post_norm = Norm(c, rngs, n)

  def __call__(
    self,
    x: jax.Array,
    by: Rotation,
    attend: Callable,
    c: DecoderConfig,
    told: Told = ALONE,
    shards: int = 1,
  ):
    """`attend(q, k, v, sinks) -> (heads, kept)`: packed attention, or the cache in decoding.

    `shards`: devices over which rows are cut.

    Returns the stream, what `attend` kept, and what the router did (None without one).
    """
    heads, kept = attend(*self.attn.qkv(self.attn_norm(x, c), by, c), self.attn.sink(c))
    y = self.attn.out(heads, c)
    x = x + (self.attn_post_norm(y, c) if c.post_norms else y)
    inputs, routed = self.mlp_norm(x, c), None
    if isinstance(self.mlp, Experts):
      y, routed = self.mlp(inputs, c, told)
    else:
      y = self.mlp(inputs, c, shards)
    return x + (self.mlp_post_norm(y, c) if c.post_norms else y), kept, routed


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
    for name, num_layers in config.stacks.items():
      dense = config.moe is None or name == "first_layers"
      setattr(self, name, Block(config, rngs, num_layers, dense=dense))
    self.final_norm = Norm(config, rngs)
    if not config.tie_embeddings:
      self.lm_head = LmHead(config, rngs)

  def __call__(
    self,
    packed: Packed,
    *,
    mask_spec: MaskSpec | None = None,
    constrain: Constrain = unconstrained,
    keep_kv: bool = False,
    keep_routing: bool = False,
    recorded_LBTX: jax.Array | None = None,
  ) -> Any:
    """Hidden states hidden_BTD, and after them what is to be kept.

    Where a mesh cuts rows (`context_of`), T is padded, and hidden_BTD is in the stored order of
    the context's layout.

    Args:
      packed: the rows.
      mask_spec: what attention sees; None for all that the model's pattern admits.
      constrain: pins activations to the mesh.
      keep_kv: also return the rotated keys and values LBTKH.
      keep_routing: also return what the routers did, a `Routed` with a leading axis over the
        layers that have experts, its `experts` i32[L, B, T, X].
      recorded_LBTX: experts to replay in those layers, see `experts.Told`.

    Raises:
      ValueError: rows that are cut, with `keep_kv`, `recorded_LBTX` or `merge_rows`; routing of a
        model without experts.
    """
    c = self.config
    mask_spec = MaskSpec(pattern=c.pattern) if mask_spec is None else mask_spec
    context = context_of(constrain, c)
    if context is not None and context.layout.shards > 1:
      if keep_kv or recorded_LBTX is not None or c.merge_rows:
        raise ValueError(
          f"rows are cut over {context.layout.shards} devices: merge_rows, keep_kv and router "
          f"replay need whole ones; set the mesh's context axis to 1"
        )
      packed = Packed(*map(context.layout.store, packed))
    if keep_routing and c.moe is None:
      raise ValueError("keep_routing: the model has no experts")
    rows, length = packed.tokens_BT.shape
    this = ForwardPass(c, packed, mask_spec, context, constrain, keep_kv, keep_routing)
    x, kept, first = this.embedded(self.embed.table[...]), [], 0
    routed: Any = None
    for name, num_layers in c.stacks.items():
      recorded_LTX = None
      if name == "layers" and recorded_LBTX is not None:
        recorded_LTX = recorded_LBTX.reshape(num_layers, rows * length, -1).astype(jnp.int32)
      x, (kv, routed) = this.through(getattr(self, name), first, num_layers, x, recorded_LTX)
      kept.append(kv)
      first += num_layers
    hidden_BTD = self.final_norm(x, c).reshape(rows, length, c.d_model)
    out = [hidden_BTD]
    if keep_kv:
      out.append(kept[0] if len(kept) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *kept))
    if keep_routing:
      experts_LBTX = routed.experts_TX.reshape(-1, rows, length, c.experts.top_k)
      out.append(routed._replace(experts_TX=experts_LBTX))
    return tuple(out) if len(out) > 1 else hidden_BTD


def init_params(config: DecoderConfig, key: jax.Array) -> Params:
  """Random parameters: normal with standard deviation 1/sqrt(d_model), norms at 1."""
  return nnx.to_pure_dict(nnx.state(Decoder(config, nnx.Rngs(params=key))))


def abstract(config: DecoderConfig) -> Decoder:
  """The decoder with `jax.ShapeDtypeStruct` leaves: nothing is allocated."""
  return nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))


def param_shapes(config: DecoderConfig) -> Params:
  """The parameter tree with `jax.ShapeDtypeStruct` leaves."""
  return nnx.to_pure_dict(nnx.state(abstract(config)))


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
  want = dict(jax.tree_util.tree_leaves_with_path(param_shapes(config)))
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
