"""The products of a mixture of experts, after routing: dropless, with a capacity, or sharded.

Letters: E experts. X: chosen experts of a token. M: tokens times X, by expert. C: places of an
expert.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ptjax.models.config import DecoderConfig
from ptjax.models.feedforward import activation
from ptjax.models.matrices import Adapted, Quantized, dense
from ptjax.sharding.rules import Constrainer


class Matrices(NamedTuple):
  """Of all experts: gate and up [E, D, F], down [E, F, D] in any of the forms of
  `models.matrices`; their biases [E, F], [E, F], [E, D], or None."""

  gate: Any
  up: Any
  down: Any
  gate_bias: jax.Array | None = None
  up_bias: jax.Array | None = None
  down_bias: jax.Array | None = None


def gated(gate: jax.Array, up: jax.Array, c: DecoderConfig) -> jax.Array:
  """The hidden layer of an expert."""
  m = c.experts
  if m.swiglu_limit is None:
    return activation(c)(gate) * up
  gate = jnp.minimum(gate, m.swiglu_limit)
  up = jnp.clip(up, -m.swiglu_limit, m.swiglu_limit)
  return (up + 1) * gate * jax.nn.sigmoid(m.swiglu_alpha * gate)


def grouped_product(
  x_MI: jax.Array, w: Any, sizes_E: jax.Array, expert_M: jax.Array, dtype: str
) -> jax.Array:
  """Each row times the matrix of its expert, f32[M, O].

  Args:
    x_MI: rows sorted by expert.
    w: [E, I, O] in any of the forms of `models.matrices`.
    sizes_E: i32, rows of each expert.
    expert_M: i32, expert of each row.
    dtype: in which the operands are read.
  """
  if isinstance(w, Adapted):
    low = grouped_product(x_MI, w.a, sizes_E, expert_M, dtype)
    added = grouped_product(low, w.b, sizes_E, expert_M, dtype)
    return grouped_product(x_MI, w.base, sizes_E, expert_M, dtype) + w.scale * added
  if isinstance(w, Quantized):
    y = grouped_product(x_MI, w.values.astype(dtype), sizes_E, expert_M, dtype)
    return y * w.scale[expert_M, 0]
  return jax.lax.ragged_dot(
    x_MI.astype(dtype), w.astype(dtype), sizes_E, preferred_element_type=jnp.float32
  )


def dropless(
  x_TD: jax.Array,
  experts_TX: jax.Array,
  weights_TX: jax.Array,
  w: Matrices,
  c: DecoderConfig,
  *,
  count: int,
  first: jax.Array | None = None,
) -> jax.Array:
  """f32[T, D]: rows sorted by expert, multiplied in groups, brought back, and added up.

  Args:
    x_TD, experts_TX, weights_TX: the tokens and where they go.
    w: matrices of `count` experts.
    c: how to compute.
    count: experts in `w`.
    first: number of the first of them, where they are a part of all: the result is then the part
      of the sum that is theirs.
  """
  key_TX, own_M = experts_TX, None
  if first is not None:  # the others' rows go to the end, and count for nothing
    local_TX = experts_TX - first
    key_TX = jnp.where((local_TX >= 0) & (local_TX < count), local_TX, count)
  order_M = jnp.argsort(key_TX.reshape(-1), stable=True)
  expert_M = key_TX.reshape(-1)[order_M]
  rows_MD = x_TD[order_M // experts_TX.shape[1]]
  if first is not None:
    own_M = (expert_M < count)[:, None]
    sizes_E = jnp.bincount(expert_M, length=count + 1)[:count].astype(jnp.int32)
    expert_M = jnp.minimum(expert_M, count - 1)
    rows_MD = jnp.where(own_M, rows_MD, 0)
  else:
    sizes_E = jnp.bincount(expert_M, length=count).astype(jnp.int32)

  def grouped(x, w, bias):
    y = grouped_product(x, w, sizes_E, expert_M, c.matmul_dtype)
    y = y if bias is None else y + bias[expert_M]
    # What a kernel leaves in rows of no group must reach neither value nor gradient.
    return y if own_M is None else jnp.where(own_M, y, 0)

  hidden = gated(grouped(rows_MD, w.gate, w.gate_bias), grouped(rows_MD, w.up, w.up_bias), c)
  out_MD = grouped(hidden.astype(x_TD.dtype), w.down, w.down_bias)
  # Each token's outputs return to its own place: a sum in fixed order, not a scatter.
  back_M = jnp.argsort(order_M)
  out_TXD = out_MD[back_M].reshape(*experts_TX.shape, -1)
  return jnp.einsum("TXD,TX->TD", out_TXD, weights_TX)


def capacity(tokens: int, c: DecoderConfig) -> int:
  """Places of each expert for so many tokens: factor times those of an even load."""
  assert c.capacity_factor is not None
  return max(1, math.ceil(tokens * c.experts.top_k / c.experts.num_experts * c.capacity_factor))


def places(
  experts_TX: jax.Array, valid_T: jax.Array | None, num_experts: int, size: int
) -> jax.Array:
  """The place of each choice at its expert, i32[T, X]; -1 where it is dropped.

  First choices are placed before second ones, earlier tokens before later ones. Padding takes no
  place. Source: Lepikhin et al., 2021 (GShard), algorithm 1.
  """
  tokens, top_k = experts_TX.shape
  one_hot = jax.nn.one_hot(experts_TX.T.reshape(-1), num_experts, dtype=jnp.int32)
  if valid_T is not None:
    one_hot *= jnp.tile(valid_T, top_k)[:, None]
  before = jnp.cumsum(one_hot, axis=0) - one_hot
  place = jnp.sum(before * one_hot, axis=-1)
  kept = (jnp.sum(one_hot, axis=-1) > 0) & (place < size)
  return jnp.where(kept, place, -1).reshape(top_k, tokens).T


def with_capacity(
  x_TD: jax.Array,
  experts_TX: jax.Array,
  weights_TX: jax.Array,
  place_TX: jax.Array,
  w: Matrices,
  c: DecoderConfig,
  size: int,
) -> jax.Array:
  """f32[T, D]: each expert has `size` places; dropped choices add nothing.

  Dispatch and combination are products with one-hot arrays [T, E, C], which grow with the square of
  the tokens, and every shape is fixed: GSPMD splits them over the experts by itself.
  """
  num_experts = c.experts.num_experts
  expert_TXE = jax.nn.one_hot(experts_TX, num_experts)
  place_TXC = jax.nn.one_hot(place_TX, size)  # of -1 all 0
  dispatch_TEC = jnp.einsum("TXE,TXC->TEC", expert_TXE, place_TXC)
  combine_TEC = jnp.einsum("TXE,TXC,TX->TEC", expert_TXE, place_TXC, weights_TX)

  def every(spec, x, w, bias):
    y = jnp.einsum(
      spec,
      x.astype(c.matmul_dtype),
      dense(w).astype(c.matmul_dtype),
      preferred_element_type=jnp.float32,
    )
    return y if bias is None else y + bias[:, None]

  in_ECD = jnp.einsum("TEC,TD->ECD", dispatch_TEC, x_TD.astype(jnp.float32)).astype(x_TD.dtype)
  up_ECF = every("ECD,EDF->ECF", in_ECD, w.up, w.up_bias)
  hidden_ECF = gated(every("ECD,EDF->ECF", in_ECD, w.gate, w.gate_bias), up_ECF, c)
  out_ECD = every("ECF,EFD->ECD", hidden_ECF.astype(x_TD.dtype), w.down, w.down_bias)
  return jnp.einsum("TEC,ECD->TD", combine_TEC, out_ECD)


def is_sharded(constrain: Any) -> bool:
  """Whether a mesh splits the experts."""
  return isinstance(constrain, Constrainer) and _places(constrain, constrain.rules.expert) > 1


def _places(constrain: Constrainer, axes: tuple[str, ...]) -> int:
  return math.prod(constrain.mesh.shape[axis] for axis in axes)


def sharded_dropless(
  x: jax.Array,
  experts_TX: jax.Array,
  weights_TX: jax.Array,
  w: Matrices,
  c: DecoderConfig,
  constrain: Constrainer,
  axes: tuple[str, ...],
) -> jax.Array:
  """`dropless` where each device holds some experts, f32 in the shape of x[*axes, D].

  Activations are not split over the mesh axes of the experts, so every device has its tokens
  already: it computes the part of its own experts, and one sum over those axes gives the whole. No
  expert moves. An all-to-all would move fewer bytes only if tokens were split over the experts'
  axes too, and would need a bound on the rows that a device receives, hence drop some.

  Raises:
    ValueError: the rules split tokens over the axes of the experts.
  """
  rules, mesh = constrain.rules, constrain.mesh
  expert, width = rules.expert, rules.expert_ff
  stream = rules.spec((*axes, None))
  used = {name for part in stream if part for name in part}
  if used & {*expert, *width}:
    raise ValueError(
      f"rules batch={rules.batch} and length={rules.length} split tokens over axes of the experts, "
      f"expert={expert} and expert_ff={width}; give them axes of their own"
    )
  count = c.experts.num_experts // _places(constrain, expert)

  def part(x, experts, weights, w: Matrices):
    # Every device has these alike and uses them for a part of the sum: their gradients add up.
    x, weights = jax.lax.pcast((x, weights), (*expert, *width), to="varying")
    x_TD, top_k = x.reshape(-1, c.d_model), experts.shape[-1]
    first = jax.lax.axis_index(expert) * count
    if w.down_bias is not None and width:  # it is added once, not by every part of the width
      w = w._replace(down_bias=w.down_bias * (jax.lax.axis_index(width) == 0))
    out_TD = dropless(
      x_TD, experts.reshape(-1, top_k), weights.reshape(-1, top_k), w, c, count=count, first=first
    )
    return jax.lax.psum(out_TD, (*expert, *width)).reshape(x.shape)

  wide, narrow = (expert, None, width), (expert, width, None)
  specs = Matrices(
    _spec(w.gate, *wide), _spec(w.up, *wide), _spec(w.down, *narrow),
    *(None if b is None else PartitionSpec(expert, s)
      for b, s in ((w.gate_bias, width), (w.up_bias, width), (w.down_bias, None))),
  )  # fmt: skip
  run = jax.shard_map(part, mesh=mesh, in_specs=(stream, stream, stream, specs), out_specs=stream)
  lead = x.shape[:-1]
  return run(x, experts_TX.reshape(*lead, -1), weights_TX.reshape(*lead, -1), w)


def _spec(w: Any, expert, inputs, outputs) -> Any:
  """Partition of a matrix in any of its forms."""
  if isinstance(w, Adapted):
    a, b = PartitionSpec(expert, inputs, None), PartitionSpec(expert, None, outputs)
    return Adapted(_spec(w.base, expert, inputs, outputs), a, b, w.scale)
  whole = PartitionSpec(expert, inputs or None, outputs or None)
  if isinstance(w, Quantized):
    return Quantized(whole, PartitionSpec(expert, None, outputs or None))
  return whole
