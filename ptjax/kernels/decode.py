"""Attention of one new token a slot over its key/value cache."""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ptjax.kernels.mask import masked_softmax

# G: query heads that share one key/value head. S: entries of one stretch of keys.


class KeyRange(NamedTuple):
  """A stretch of keys and values that a slot's query may see.

  Attributes:
    k_RKHS: keys, transposed: the product with a query then reads them in order.
      Where not valid they may be anything, nan included.
    v_RKSH: values; where not valid they must be finite.
    valid_RS: bool, the entries that count.
  """

  k_RKHS: jax.Array
  v_RKSH: jax.Array
  valid_RS: jax.Array


def decode_attention(q_RNH: jax.Array, *ranges: KeyRange) -> jax.Array:
  """One query a slot against all its keys, which may lie in several ranges.

  Args:
    q_RNH: queries of the newest tokens.
    ranges: where the keys and values are.

  Returns:
    out_RNH in the dtype of q; 0 where no entry is valid.
  """
  rows, num_heads, head_dim = q_RNH.shape
  num_kv = ranges[0].k_RKHS.shape[1]
  q_RKGH = q_RNH.reshape(rows, num_kv, num_heads // num_kv, head_dim) * head_dim**-0.5
  scores = [
    jnp.einsum("RKGH,RKHS->RKGS", q_RKGH, r.k_RKHS, preferred_element_type=jnp.float32)
    for r in ranges
  ]
  valid_RS = jnp.concatenate([r.valid_RS for r in ranges], axis=-1)
  weights_RKGS = masked_softmax(jnp.concatenate(scores, axis=-1), valid_RS[:, None, None])
  parts, start = [], 0
  for r in ranges:
    end = start + r.v_RKSH.shape[2]
    part_RKGS = weights_RKGS[..., start:end].astype(r.v_RKSH.dtype)
    parts.append(jnp.einsum("RKGS,RKSH->RKGH", part_RKGS, r.v_RKSH))
    start = end
  return functools.reduce(operator.add, parts).reshape(q_RNH.shape)
