"""The small parts of a decoder: products, norm, rotary embedding."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models.config import DecoderConfig
from ptjax.models.matrices import Adapted, Quantized
from ptjax.models.rotary import RopeScaling, frequencies


def param(
  rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], init: Callable
) -> nnx.Param:
  """A float32 parameter that names the logical axis of each dimension."""
  if len(shape) != len(axes):
    raise ValueError(f"shape {shape} has {len(shape)} dimensions, axes {axes} name {len(axes)}")
  return nnx.Param(init(rngs.params(), shape, jnp.float32), axes=axes)


def product(x: jax.Array, w: Any, c: DecoderConfig) -> jax.Array:
  """x[..., I] times w[I, *O], or w[*O, I] where the weights are stored `out_first`.

  Args:
    x: activations.
    w: a matrix in any of the forms of `models.matrices`.
    c: how to compute.

  Returns:
    f32[..., *O].
  """
  if isinstance(w, Adapted):
    return _adapted(product, x, w, c)
  if isinstance(w, Quantized):
    return _quantized(product, x, w, c)
  if c.out_first:
    return _product_from_left(x, w, c.matmul_dtype)
  lead, out = "BTC"[: x.ndim - 1], "NH"[: w.ndim - 1]
  return project(f"{lead}I,I{out}->{lead}{out}", x, w, c.matmul_dtype)


def _adapted(times: Callable, x: jax.Array, w: Adapted, c: DecoderConfig) -> jax.Array:
  """x base + scale (x a) b: the sum of the two products, never that of the matrices."""
  return times(x, w.base, c) + w.scale * product(product(x, w.a, c), w.b, c)


def _quantized(times: Callable, x: jax.Array, w: Quantized, c: DecoderConfig) -> jax.Array:
  """(x values) scale: the matrix is read in its narrow form and never exists in a wider one."""
  scale = w.scale[..., 0] if c.out_first else w.scale[0]
  return times(x, w.values.astype(c.matmul_dtype), c) * scale


def flat_inputs(w: Any, num_inputs: int, c: DecoderConfig) -> Any:
  """A matrix of several input axes as one of one, in any of the forms of `models.matrices`."""
  if isinstance(w, Adapted):
    return dataclasses.replace(
      w, base=flat_inputs(w.base, num_inputs, c), a=flat_inputs(w.a, num_inputs, c)
    )
  if isinstance(w, Quantized):
    return jax.tree.map(lambda x: flat_inputs(x, num_inputs, c), w)
  if c.out_first:
    return w.reshape(*w.shape[:-num_inputs], -1)
  return w.reshape(-1, *w.shape[num_inputs:])


def product_in_parts(x: jax.Array, w: Any, c: DecoderConfig) -> jax.Array:
  """`product` of x[..., I] and a matrix, summed in `ff_parts` pieces of I that are then added.

  The backward products are those of `product`: cut in pieces as well, they would have to be
  padded and added up at full size.
  """
  if c.ff_parts == 1:
    return product(x, w, c)
  if isinstance(w, Adapted):
    return _adapted(product_in_parts, x, w, c)
  if isinstance(w, Quantized):
    return _quantized(product_in_parts, x, w, c)
  return _in_parts(c, x, w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_parts(c: DecoderConfig, x: jax.Array, w: jax.Array) -> jax.Array:
  pieces = zip(
    jnp.split(x, c.ff_parts, axis=-1),
    jnp.split(w, c.ff_parts, axis=-1 if c.out_first else 0),
    strict=True,
  )
  return functools.reduce(operator.add, (product(*piece, c) for piece in pieces))


def _in_parts_forward(c, x, w):
  return _in_parts(c, x, w), (x, w)


def _in_parts_backward(c, saved, grad):
  return jax.vjp(lambda x, w: product(x, w, c), *saved)[1](grad)


_in_parts.defvjp(_in_parts_forward, _in_parts_backward)


def _product_from_left(x: jax.Array, w: jax.Array, dtype: str) -> jax.Array:
  """W x^T. The barriers keep XLA from turning it back into x W^T, the slow form."""
  rows = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]).astype(dtype).T)
  flat = jnp.matmul(
    w.reshape(-1, w.shape[-1]).astype(dtype), rows, preferred_element_type=jnp.float32
  )
  return jax.lax.optimization_barrier(flat).T.reshape(*x.shape[:-1], *w.shape[:-1])


def out_first(w: Any, num_inputs: int = 1) -> Any:
  """w[*I, *O], plain or quantised, as w[*O, *I], the form that `DecoderConfig.out_first` reads."""
  if isinstance(w, Quantized):
    return jax.tree.map(lambda x: out_first(x, num_inputs), w)
  axes = range(w.ndim)
  return w.transpose(*axes[num_inputs:], *axes[:num_inputs])


def project(spec: str, x: jax.Array, w: jax.Array, dtype: str) -> jax.Array:
  """einsum(spec, x, w) reading its operands in `dtype`, accumulated in float32.

  The backward products read their operands in `dtype` too; a low-precision forward
  saves the operands already narrowed, at half the memory.
  """
  if dtype == "float32":
    return jnp.einsum(spec, x, w, preferred_element_type=jnp.float32)
  return _narrow_project(spec, dtype, x, w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow_project(spec, dtype, x, w):
  return _narrow_forward(spec, dtype, x, w)[0]


def _narrow_forward(spec, dtype, x, w):
  # The empty arrays carry the operands' dtypes to the backward pass.
  saved = x.astype(dtype), w.astype(dtype), jnp.zeros(0, x.dtype), jnp.zeros(0, w.dtype)
  return jnp.einsum(spec, *saved[:2], preferred_element_type=jnp.float32), saved


def _narrow_backward(spec, dtype, saved, grad):
  x, w, x_like, w_like = saved
  inputs, out = spec.split("->")
  a, b = inputs.split(",")
  narrow = grad.astype(dtype)
  dx = jnp.einsum(f"{out},{b}->{a}", narrow, w, preferred_element_type=jnp.float32)

  def dw(x, grad):
    return jnp.einsum(f"{a},{out}->{b}", x, grad, preferred_element_type=jnp.float32)

  # XLA's CPU backend has no low-precision product that contracts the leading axis.
  dw = jax.lax.platform_dependent(
    x, narrow, cpu=lambda x, g: dw(x.astype(jnp.float32), g.astype(jnp.float32)), default=dw
  )
  return dx.astype(x_like.dtype), dw.astype(w_like.dtype)


_narrow_project.defvjp(_narrow_forward, _narrow_backward)


def rms_norm(x: jax.Array, scale_D: jax.Array, eps: float) -> jax.Array:
  """x / sqrt(mean(x^2) + eps) * scale, in float32, returned in x's dtype.

  Source: Zhang and Sennrich, 2019, eq. 4.
  """
  wide = x.astype(jnp.float32)  # the mean square loses too much in bfloat16
  inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
  return (wide * inverse * scale_D).astype(x.dtype)


def norm(x: jax.Array, scale_D: jax.Array, c: DecoderConfig) -> jax.Array:
  """`rms_norm` with the model's epsilon; its scale is 1 + w where `c.norm_offset` says so."""
  if c.norm_offset:
    scale_D = 1.0 + scale_D.astype(jnp.float32)
  return rms_norm(x, scale_D, c.norm_eps)


class Rotation(NamedTuple):
  """Sine and cosine of every angle, f32[..., 1, H/2]: one computation for all layers."""

  sin: jax.Array
  cos: jax.Array


def rotation(
  positions: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> Rotation:
  """The angles position * theta^(-2i/H) of the pairs i.

  They are float32: in bfloat16 they are off by a radian at position 4096.

  Args:
    positions: i32[...].
    head_dim: H.
    theta: base of the frequencies.
    scaling: how the frequencies are changed for long contexts, see `models.rotary`.
  """
  frequency = frequencies(positions, head_dim, theta, scaling)
  angle = positions.astype(jnp.float32)[..., None, None] * frequency
  if scaling is None or scaling.attention_factor == 1.0:
    return Rotation(jnp.sin(angle), jnp.cos(angle))
  factor = scaling.attention_factor
  return Rotation(factor * jnp.sin(angle), factor * jnp.cos(angle))


def rotations(positions: jax.Array, c: DecoderConfig) -> tuple[Rotation, ...]:
  """One rotation for each of the model's rotary embeddings, `c.ropes`."""
  plain = Rotation(*(jnp.full((*positions.shape, 1, c.rotary_dim // 2), v) for v in (0.0, 1.0)))
  return tuple(
    plain if kind is None else rotation(positions, c.rotary_dim, *kind) for kind in c.ropes
  )


def rope(x: jax.Array, by: Rotation) -> jax.Array:
  """Rotates the pairs (x_i, x_{i + H/2}) of x[..., heads, H].

  Source: Su et al., 2021, in the half-split layout of the Llama checkpoints.
  """
  half = x.shape[-1] // 2
  left, right = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
  rotated = [left * by.cos - right * by.sin, right * by.cos + left * by.sin]
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
