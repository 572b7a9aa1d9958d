"""The decoder: token ids to final hidden states; the heads are apart (`heads.py`).

Every parameter of the blocks has a leading axis over the layers of its stack and the forward
pass scans over it, so that compile time does not grow with depth. Layers of one stack have
equal shapes; their windows and rotary embeddings, where they differ, are scanned with them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ptjax.kernels.attention import attention
from ptjax.kernels.mask import MaskSpec
from ptjax.kernels.scores import Scores
from ptjax.models.attention import Attention
from ptjax.models.config import DecoderConfig
from ptjax.models.experts import Experts
from ptjax.models.feedforward import GatedMlp
from ptjax.models.latent import LatentAttention
from ptjax.models.layers import Rotation, norm, param, rotations
from ptjax.sharding.rules import BATCH_BESIDE_EMBED

Params = dict[str, Any]  # nested dict of arrays, the layout of `Decoder`
Constrain = Callable[[jax.Array, tuple[str | None, ...]], jax.Array]


_ROW_AXES = ("batch", "length")
_CAUSAL = MaskSpec()
_ATTENDED = "attended"  # what `remat` calls the output of attention


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

  def __call__(self, x: jax.Array, by: Rotation, attend: Callable, c: DecoderConfig):
    """`attend(q, k, v, sinks) -> (heads, kept)`: packed attention, or the cache in decoding."""
    heads, kept = attend(*self.attn.qkv(self.attn_norm(x, c), by, c), self.attn.sink(c))
    y = self.attn.out(heads, c)
    x = x + (self.attn_post_norm(y, c) if c.post_norms else y)
    y = self.mlp(self.mlp_norm(x, c), c)
    return x + (self.mlp_post_norm(y, c) if c.post_norms else y), kept


class Kinds(NamedTuple):
  """What the layers of one stack differ in, as scanned arrays; None where they do not.

  Attributes:
    window_L: i32, keys that a query sees at most.
    rope_L: i32, index into `DecoderConfig.ropes`.
  """

  window_L: jax.Array | None
  rope_L: jax.Array | None


_UNBOUNDED = 2**31 - 1  # as a window: sees every key


def _kinds(c: DecoderConfig, first: int, num_layers: int) -> Kinds:
  def scanned(values: list[int]) -> jax.Array | None:
    return None if len(set(values)) == 1 else jnp.asarray(values, jnp.int32)

  layers = range(first, first + num_layers)
  return Kinds(
    scanned([c.layer_window(i) or _UNBOUNDED for i in layers]),
    scanned([c.layer_rope(i) for i in layers]),
  )


def _remat(block: Callable, kind: str) -> Callable:
  if kind == "none":
    return block
  policies = jax.checkpoint_policies
  policy = {
    "dots": policies.dots_with_no_batch_dims_saveable,
    "attention": policies.save_only_these_names(_ATTENDED),
    "full": None,
  }[kind]
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
    mask_spec: MaskSpec = _CAUSAL,
    constrain: Constrain = unconstrained,
    keep_kv: bool = False,
  ) -> Any:
    """Hidden states hidden_BTD; with `keep_kv` also the rotated keys and values LBTKH."""
    c = self.config
    rows, length = packed.tokens_BT.shape
    lead, axes = ((rows * length,), ("batch",)) if c.merge_rows else ((rows, length), _ROW_AXES)
    by_kind = rotations(packed.positions_BT.reshape(lead), c)

    def attend(window, q, k, v, sinks_N):
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
        scores=scores_of(c),
        window=window,
        sinks_N=sinks_N,
      )
      out_BTNH = checkpoint_name(out_BTNH, _ATTENDED)
      return out_BTNH.reshape(*lead, *out_BTNH.shape[2:]), (k_BTKH, v_BTKH) if keep_kv else None

    # Each device looks up its part of the width, for all rows that share the table's parts; then
    # rows are exchanged for widths. Left to itself, the compiler gathers whole activations.
    split = (BATCH_BESIDE_EMBED, *axes[1:])
    tokens = constrain(packed.tokens_BT.reshape(lead), split)
    x = constrain(constrain(self.embed_tokens(tokens), (*split, "embed")), (*axes, None))
    kept, first = [], 0
    for name, num_layers in c.stacks.items():
      graph, layers = nnx.split(getattr(self, name))

      def block(x, scanned, graph=graph, first=first):
        layer, kind = scanned
        window = c.layer_window(first) if kind.window_L is None else kind.window_L
        by = by_kind[c.layer_rope(first)]
        if kind.rope_L is not None:
          by = Rotation(*(jnp.stack(parts)[kind.rope_L] for parts in zip(*by_kind, strict=True)))
        x, kv = nnx.merge(graph, layer)(x, by, functools.partial(attend, window), c)
        return constrain(x, (*axes, None)), kv

      kinds = _kinds(c, first, num_layers)
      x, kv = jax.lax.scan(_remat(block, c.remat), x, (layers, kinds))
      kept.append(kv)
      first += num_layers
    hidden_BTD = self.final_norm(x, c).reshape(rows, length, c.d_model)
    if not keep_kv:
      return hidden_BTD
    return hidden_BTD, kept[0] if len(kept) == 1 else jax.tree.map(
      lambda *x: jnp.concatenate(x), *kept
    )

  def embed_tokens(self, tokens: jax.Array) -> jax.Array:
    """Rows of the token table, in the activation dtype."""
    return embed(self.embed.table[...], tokens, self.config)


def embed(table_VD: jax.Array, tokens: jax.Array, c: DecoderConfig) -> jax.Array:
  """The residual stream's first value, [..., D] in the activation dtype."""
  x = table_VD[tokens].astype(c.activation_dtype)
  return x if c.embed_scale is None else x * jnp.asarray(c.embed_scale, x.dtype)


def scores_of(c: DecoderConfig) -> Scores:
  """How the model's attention scores are made."""
  return Scores(c.query_scale, c.score_cap)


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
