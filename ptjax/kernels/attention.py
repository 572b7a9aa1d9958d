"""Attention over packed rows. One entry, `attention`; the jnp reference is the oracle.

A packed row holds several documents, each a shared prefix followed by branches
(the completions of one prompt). A query sees a key when

    segment(key) == segment(query) > 0
    and branch(key) in {0, branch(query)}         0 is the shared prefix
    and index(key) <= index(query)                causal
    and index(query) - index(key) < window        where a window is set

Worked example, one prompt "p q" with completions "a b" and "c", then padding:

    token     p q a b c .
    segment   1 1 1 1 1 0
    branch    0 0 1 1 2 0
    position  0 1 2 3 2 0
    c sees    p q     c
"""

import dataclasses

import jax
import jax.numpy as jnp

# G: query heads that share one key/value head.


@dataclasses.dataclass(frozen=True)
class MaskSpec:
  """What a query may see.

  Attributes:
    window: keys seen at most, the query's own included; None sees the whole prefix.
  """

  window: int | None = None

  def __post_init__(self):
    if self.window is not None and self.window < 1:
      raise ValueError(f"window {self.window} must be at least 1, or None for no window")


def visible(
  spec: MaskSpec, segment_ids_BT: jax.Array, branch_ids_BT: jax.Array, positions_BT: jax.Array
) -> jax.Array:
  """Mask bool[B, T, S], true where query t sees key s (see the module's text)."""
  num = segment_ids_BT.shape[1]
  index_q, index_k = jnp.arange(num)[:, None], jnp.arange(num)[None, :]
  segment_q, segment_k = segment_ids_BT[:, :, None], segment_ids_BT[:, None, :]
  branch_q, branch_k = branch_ids_BT[:, :, None], branch_ids_BT[:, None, :]
  mask_BTS = (segment_q == segment_k) & (segment_q > 0)
  mask_BTS &= (branch_k == 0) | (branch_k == branch_q)
  mask_BTS &= index_k <= index_q
  if spec.window is not None:
    mask_BTS &= positions_BT[:, :, None] - positions_BT[:, None, :] < spec.window
  return mask_BTS


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
  """Softmax over the last axis where `mask`; exactly 0 elsewhere and on empty rows.

  The mask comes before `exp`, so that a masked inf or nan reaches neither the value
  nor the gradient.
  """
  scores = jnp.where(mask, scores, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True)
  top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  return weights / jnp.where(total > 0, total, 1.0)


def attention(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  *,
  mask_spec: MaskSpec,
  segment_ids_BT: jax.Array,
  branch_ids_BT: jax.Array,
  positions_BT: jax.Array,
) -> jax.Array:
  """Scaled dot-product attention with grouped key/value heads over packed rows.

    out = softmax(q k^T / sqrt(H)) v      over the keys that the query sees

  Args:
    q_BTNH: queries; query head n reads key/value head n // (N / K).
    k_BTKH: keys, after the rotary embedding.
    v_BTKH: values.
    mask_spec: window.
    segment_ids_BT: i32, document of each token, 0 for padding.
    branch_ids_BT: i32, branch within the document, 0 for the shared prefix.
    positions_BT: i32, position of the token in its own sequence.

  Returns:
    out_BTNH in the dtype of q; zeros at padding. Scores and softmax are float32.
  """
  num_kv, head_dim = k_BTKH.shape[2:]
  q_BTKGH = q_BTNH.reshape(*q_BTNH.shape[:2], num_kv, -1, head_dim)
  scores_BKGTS = jnp.einsum(
    "BTKGH,BSKH->BKGTS", q_BTKGH * head_dim**-0.5, k_BTKH, preferred_element_type=jnp.float32
  )
  mask_BTS = visible(mask_spec, segment_ids_BT, branch_ids_BT, positions_BT)
  weights_BKGTS = masked_softmax(scores_BKGTS, mask_BTS[:, None, None])
  out_BTKGH = jnp.einsum("BKGTS,BSKH->BTKGH", weights_BKGTS.astype(v_BTKH.dtype), v_BTKH)
  return out_BTKGH.reshape(q_BTNH.shape).astype(q_BTNH.dtype)


def decode_attention(
  q_RNH: jax.Array, k_RKSH: jax.Array, v_RKSH: jax.Array, lengths_R: jax.Array
) -> jax.Array:
  """One query a slot against its cache; keys at or past `lengths_R` are never read.

  The stale tail of a slot may hold anything, nan included.
  """
  num_kv, num_keys, head_dim = k_RKSH.shape[1:]
  q_RKGH = q_RNH.reshape(q_RNH.shape[0], num_kv, -1, head_dim) * head_dim**-0.5
  valid_RS = jnp.arange(num_keys) < lengths_R[:, None]
  scores_RKGS = jnp.einsum(
    "RKGH,RKSH->RKGS", q_RKGH, k_RKSH, preferred_element_type=jnp.float32
  )
  weights_RKGS = masked_softmax(scores_RKGS, valid_RS[:, None, None])
  out_RKGH = jnp.einsum("RKGS,RKSH->RKGH", weights_RKGS.astype(v_RKSH.dtype), v_RKSH)
  return out_RKGH.reshape(q_RNH.shape)
