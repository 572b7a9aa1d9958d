"""The forms in which a matrix of the decoder is stored: plain, quantised, under an adapter.

All are pytrees that stand where a plain array stands in the parameter tree: a scan over layers
cuts them, a mesh shards them. `layers.product` and the experts multiply by any of them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

_SEVERAL_INPUTS = {"wo": 2}  # [heads, head, embed]; all other matrices have one input axis


def input_axes(path: str) -> int | None:
  """Input axes of the matrix at a path such as `layers/attn/wq`; None for what is no matrix.

  Matrices are named w… or e_… (experts). Tables, routers, biases and scales are none: they are
  looked up, or read in float32.
  """
  name = path.rpartition("/")[2]
  if name.startswith(("w", "e_")):
    return _SEVERAL_INPUTS.get(name, 1)
  return None


class _Matrix:
  """What `nnx.Variable.__getitem__` asks of a value."""

  def __getitem__(self, index):
    if index is not ...:
      raise TypeError(f"{type(self).__name__} is read whole, not at {index!r}; use dense() first")
    return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantized(_Matrix):
  """values * scale, one scale for each output channel.

  Attributes:
    values: int8 or float8_e4m3fn [..., *I, *O].
    scale: f32 [..., 1 for each input axis, *O].
  """

  values: Any
  scale: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapted(_Matrix):
  """base + scale * a b, of low rank (Hu et al., 2021, eq. 3).

  Attributes:
    base: a plain or quantised matrix [..., *I, *O].
    a: f32[..., *I, rank].
    b: f32[..., rank, *O].
    scale: of the product.
  """

  base: Any
  a: Any
  b: Any
  scale: float = dataclasses.field(metadata={"static": True})


def is_matrix(x: Any) -> bool:
  """Whether `x` is one of the forms that are more than an array; a leaf for `jax.tree.map`."""
  return isinstance(x, _Matrix)


def low_rank(a: Any, b: Any, num_inputs: int) -> Any:
  """a[..., *I, rank] times b[..., rank, *O], as [..., *I, *O] in float32."""
  lead = a.ndim - 1 - num_inputs
  inputs, outputs = a.shape[lead:-1], b.shape[lead + 1 :]
  flat_a = a.reshape(*a.shape[:lead], math.prod(inputs), a.shape[-1])
  flat_b = b.reshape(*b.shape[: lead + 1], math.prod(outputs))
  product = jnp.matmul(flat_a, flat_b, precision=jax.lax.Precision.HIGHEST)
  return product.reshape(*a.shape[:lead], *inputs, *outputs)


def dense(w: Any) -> Any:
  """Any form of a matrix as one plain array; other leaves unchanged."""
  if isinstance(w, Quantized):
    return w.values.astype(jnp.float32) * w.scale
  if isinstance(w, Adapted):
    base = dense(w.base)
    num_outputs = base.ndim - w.a.ndim + 1
    num_inputs = w.a.ndim - (w.b.ndim - num_outputs)
    return base + w.scale * low_rank(w.a, w.b, num_inputs)
  return w


def densify(params: Any) -> Any:
  """A parameter tree with plain arrays only; what is plain already is shared, not copied."""
  return jax.tree.map(dense, params, is_leaf=is_matrix)


def map_matrices(f: Callable[[str, Any], Any], params: Mapping[str, Any]) -> dict[str, Any]:
  """`f(path, leaf)` in place of each matrix of the tree, whatever its form; the rest as it is."""

  def walk(node: Any, path: str) -> Any:
    if isinstance(node, Mapping):
      return {k: walk(v, f"{path}/{k}" if path else k) for k, v in node.items()}
    return node if input_axes(path) is None else f(path, node)

  return walk(params, "")
