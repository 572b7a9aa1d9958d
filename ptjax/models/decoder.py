"""The decoder: token ids to final hidden states; the heads are apart (`heads.py`).

Every parameter of the blocks has a leading axis over the layers of its stack and the forward
pass scans over it, so that compile time does not grow with depth. Layers of one stack have
equal shapes; their windows and rotary embeddings, where they differ, are scanned with them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ptjax.kernels.attention import attention
from ptjax.kernels.context import Context
from ptjax.kernels.flash import OUTPUTS
from ptjax.kernels.mask import MaskSpec
from ptjax.kernels.scores import Scores
from ptjax.models.attention import Attention
from ptjax.models.config import DecoderConfig
from ptjax.models.experts import ALONE, Experts, Told
from ptjax.models.feedforward import GatedMlp
from ptjax.models.latent import LatentAttention
from ptjax.models.layers import Rotation, norm, param, rotations
from ptjax.sharding.rules import BATCH_BESIDE_EMBED, LENGTH_BESIDE_EMBED, Constrainer

Params = dict[str, Any]  # nested dict of arrays, the layout of `Decoder`
Constrain = Callable[[jax.Array, tuple[str | None, ...]], jax.Array]


_ROW_AXES = ("batch", "length")


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


_LAYER_INPUT = "layer_input"


def _remat(block: Callable, kind: str) -> Callable:
  if kind == "none":
    return block
  policies = jax.checkpoint_policies
  policy = {
    "dots": policies.dots_with_no_batch_dims_saveable,
    "attention": policies.save_only_these_names(*OUTPUTS),
    "full": None,
    "offload": policies.save_and_offload_only_these_names(
      names_which_can_be_saved=[],
      names_which_can_be_offloaded=[_LAYER_INPUT, *OUTPUTS],
      offload_src="device",
      offload_dst="pinned_host",
    ),
  }[kind]
  return jax.checkpoint(block, policy=policy, prevent_cse=False)  # scan keeps it apart


def context_of(constrain: Constrain, c: DecoderConfig) -> Context | None:
  """How attention runs on the mesh of `constrain`; None where rows are whole and no TPU computes.

  Raises:
    ValueError: rules under which attention cannot be sharded.
  """
  if not isinstance(constrain, Constrainer):
    return None
  rules, mesh = constrain.rules, constrain.mesh
  if len(rules.length) > 1:
    raise ValueError(f"rule length={rules.length}: rows are cut along one mesh axis at most")
  axis = rules.length[0] if rules.length else None
  cut = axis is not None and mesh.shape[axis] > 1
  flash = mesh.devices.flat[0].platform == "tpu" and c.attention in ("auto", "flash")
  if not cut and not flash:
    return None
  if rules.heads != rules.kv_heads:
    raise ValueError(
      f"rules heads={rules.heads} and kv_heads={rules.kv_heads}: query heads must be on the "
      f"devices of their key/value heads; make them equal"
    )
  return Context(
    mesh,
    axis,
    rules.batch,
    rules.heads,
    c.context_layout,
    c.context_attention,
    transfer=c.context_transfer,
  )


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


@dataclasses.dataclass(frozen=True)
class _Pass:
  """One forward pass: its rows, and what every layer does with them alike."""

  config: DecoderConfig
  packed: Packed
  mask_spec: MaskSpec
  context: Context | None
  constrain: Constrain
  keep_kv: bool
  keep_routing: bool

  @property
  def lead(self) -> tuple[int, ...]:
    """Leading sizes of the residual stream."""
    rows, length = self.packed.tokens_BT.shape
    return (rows * length,) if self.config.merge_rows else (rows, length)

  @property
  def axes(self) -> tuple[str, ...]:
    """Their logical axes."""
    return ("batch",) if self.config.merge_rows else _ROW_AXES

  def embedded(self, table_VD: jax.Array) -> jax.Array:
    """The residual stream's first value.

    Each device looks up its part of the width, for all tokens that share the table's parts; then
    tokens are exchanged for widths. Left to itself, the compiler gathers whole activations.
    """
    axes, constrain = self.axes, self.constrain
    split = (BATCH_BESIDE_EMBED, LENGTH_BESIDE_EMBED)[: len(axes)]
    tokens = constrain(self.packed.tokens_BT.reshape(self.lead), split)
    x = embed(table_VD, tokens, self.config)
    return constrain(constrain(x, (*split, "embed")), (*axes, None))

  def attend(self, window, q, k, v, sinks_N):
    """(attention's output, the keys and values that are to be kept)."""
    packed, c = self.packed, self.config
    rows, length = packed.tokens_BT.shape
    q_BTNH, k_BTKH, v_BTKH = (x.reshape(rows, length, *x.shape[-2:]) for x in (q, k, v))
    out_BTNH = attention(
      q_BTNH,
      k_BTKH,
      v_BTKH,
      mask_spec=self.mask_spec,
      segment_ids_BT=packed.segment_ids_BT,
      branch_ids_BT=packed.branch_ids_BT,
      positions_BT=packed.positions_BT,
      implementation=c.attention,
      scores=scores_of(c),
      window=window,
      sinks_N=sinks_N,
      context=self.context,
    )
    out = out_BTNH.reshape(*self.lead, *out_BTNH.shape[2:])
    return out, (k_BTKH, v_BTKH) if self.keep_kv else None

  def through(self, stack: Block, first: int, num_layers: int, x: jax.Array, recorded_LTX):
    """(x after a stack of layers, (kept keys and values, routing) of each layer)."""
    c, (graph, layers) = self.config, nnx.split(stack)
    shards = 1 if self.context is None else self.context.layout.shards
    by_kind = rotations(self.packed.positions_BT.reshape(self.lead), c)
    knows_padding = self.keep_routing or c.capacity_factor is not None
    valid_T = (self.packed.segment_ids_BT > 0).reshape(-1) if knows_padding else None

    def block(x, scanned):
      layer, kind, recorded_TX = scanned
      x = checkpoint_name(x, _LAYER_INPUT)
      window = c.layer_window(first) if kind.window_L is None else kind.window_L
      by = by_kind[c.layer_rope(first)]
      if kind.rope_L is not None:
        by = Rotation(*(jnp.stack(p)[kind.rope_L] for p in zip(*by_kind, strict=True)))
      told = Told(valid_T, recorded_TX, self.constrain, self.axes)
      attend_layer = functools.partial(self.attend, window)
      x, kv, routed = nnx.merge(graph, layer)(x, by, attend_layer, c, told, shards)
      x = self.constrain(x, (*self.axes, None))
      return x, (kv, routed if self.keep_routing else None)

    scanned = layers, _kinds(c, first, num_layers), recorded_LTX
    return jax.lax.scan(_remat(block, c.remat), x, scanned)


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
    this = _Pass(c, packed, mask_spec, context, constrain, keep_kv, keep_routing)
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
