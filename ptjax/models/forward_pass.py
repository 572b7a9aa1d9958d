"""One forward pass of the decoder's layers: what they share, and the scan over a stack of them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ptjax.kernels.attention import attention
from ptjax.kernels.context import Context
from ptjax.kernels.flash import OUTPUTS
from ptjax.kernels.mask import MaskSpec
from ptjax.kernels.scores import Scores
from ptjax.models.config import DecoderConfig
from ptjax.models.experts import Told
from ptjax.models.layers import Rotation, rotations
from ptjax.sharding.rules import BATCH_BESIDE_EMBED, LENGTH_BESIDE_EMBED, Constrainer

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


def embed(table_VD: jax.Array, tokens: jax.Array, c: DecoderConfig) -> jax.Array:
  """The residual stream's first value, [..., D] in the activation dtype."""
  x = table_VD[tokens].astype(c.activation_dtype)
  return x if c.embed_scale is None else x * jnp.asarray(c.embed_scale, x.dtype)


def scores_of(c: DecoderConfig) -> Scores:
  """How the model's attention scores are made."""
  return Scores(c.query_scale, c.score_cap)


@dataclasses.dataclass(frozen=True)
class ForwardPass:
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

  def through(self, stack: nnx.Module, first: int, num_layers: int, x: jax.Array, recorded_LTX):
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
