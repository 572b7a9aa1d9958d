"""Rows that are cut over fake devices: attention over them, and over the same rows in one piece."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from attention_cases import ids
from jax.sharding import Mesh

from ptjax.kernels.attention import attention
from ptjax.kernels.context import Context
from ptjax.kernels.mask import MaskSpec, visible
from ptjax.kernels.reference import reference
from ptjax.kernels.scores import PLAIN

LENGTH = 21  # a multiple of no number of shards and of no block

# Documents as in `attention_cases.ROWS`; in 2 to 8 shards most of them cross a boundary.
ROWS = (
  ((21, ()),),  # one document
  ((1, ()), (2, ()), (3, ()), (2, ()), (4, ()), (1, ()), (3, ()), (4, ())),  # eight, and padding
  ((6, (5, 3)), (3, (2, 2))),  # prefixes with branches
  (),  # nothing but padding: every row of the softmax is empty
)
PACKED = ids(ROWS, LENGTH)


def context(shards: int, **changes) -> Context:
  """Rows cut over the first few devices; blocks of 2, so that a shard has several."""
  mesh = Mesh(
    np.asarray(jax.devices()[:shards]).reshape(1, shards, 1), ("data", "context", "tensor")
  )
  return Context(mesh, **{"batch": ("data",), "heads": ("tensor",), "block": 2} | changes)


def attend(
  where: Context, q, k, v, *, packed=PACKED, scores=PLAIN, window=None, sinks=None, pattern=None
):
  """out_BTNH in the rows' own order."""
  store = where.layout.store
  segment, branch, position = (store(jnp.asarray(x)) for x in packed)
  out = attention(
    *(store(x) for x in (q, k, v)),
    mask_spec=MaskSpec(pattern=pattern),
    segment_ids_BT=segment,
    branch_ids_BT=branch,
    positions_BT=position,
    scores=scores,
    window=window,
    sinks_N=sinks,
    context=where,
  )
  return where.layout.restore(out, q.shape[1])


def whole(q, k, v, *, packed=PACKED, scores=PLAIN, window=None, sinks=None):
  """The oracle."""
  packed = map(jnp.asarray, packed)
  return reference(q, k, v, visible(MaskSpec(window), *packed), scores, sinks)


def value_and_grads(attend, arrays, bar, sinks=None, **settings):
  """The output, and the gradients of q, k, v and the sinks against `bar`."""

  @jax.jit
  def run(arrays, sinks, bar):
    call = functools.partial(attend, **settings)
    out, pull = jax.vjp(lambda arrays, sinks: call(*arrays, sinks=sinks), arrays, sinks)
    return out, pull(bar)

  return jax.tree.leaves(run(tuple(arrays), sinks, bar))


def assert_close(got, want, tolerance: float) -> None:
  """Relative to the greatest value where that is above 1."""
  for x, y in zip(got, want, strict=True):
    assert x.dtype == y.dtype
    wide = [np.asarray(z, np.float32) for z in (x, y)]
    np.testing.assert_allclose(*wide, rtol=0, atol=tolerance * max(1.0, np.abs(wide[1]).max()))
