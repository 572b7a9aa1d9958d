"""Mixture of experts, dropless: each token's rows are sorted by expert and multiplied in groups."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models.config import DecoderConfig, MoeConfig
from ptjax.models.feedforward import GatedMlp, activation
from ptjax.models.layers import param
from ptjax.models.matrices import Adapted, Quantized

# E: experts. G: groups of experts. X: chosen experts of a token. M: tokens times X, by expert.


class Told(NamedTuple):
  """What the experts of a layer are told beside its input, T tokens flattened.

  Attributes:
    valid_T: bool, false for padding, which counts in no statistic; None: all are tokens.
    experts_TX: i32, recorded experts to use instead of the router's own choice, -1 where there is
      no record (router replay); None replays nothing.
  """

  valid_T: jax.Array | None = None
  experts_TX: jax.Array | None = None


ALONE = Told()


class Routed(NamedTuple):
  """What the router of a layer did; sums are over valid tokens, f32.

  Attributes:
    experts_TX: i32, the experts of each token.
    counts_E: tokens that each expert was chosen for.
    probs_E: sum of the router's probabilities; of sigmoid scores, divided by their sum.
    z: sum of squared log-sum-exps of the router's logits.
  """

  experts_TX: jax.Array
  counts_E: jax.Array
  probs_E: jax.Array
  z: jax.Array


def route(
  logits_TE: jax.Array,
  m: MoeConfig,
  correction_E: jax.Array | None = None,
  recorded_TX: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The experts of each token and their weights.

  softmax (Mixtral, 2024, section 2.1):  the top-k of softmax(logits), divided by their sum
    where `m.normalize`.
  sigmoid (DeepSeek-V3, 2024, section 2.1.2):  s = sigmoid(logits); the top-k of s + correction
    among the groups whose two best sum highest; weights from s alone.

  Args:
    logits_TE: f32.
    m: how to choose.
    correction_E: f32, balances the experts' load; takes part in the choice only.
    recorded_TX: i32, experts to take instead of the choice where they are not -1. The weights are
      those of the present logits, and the gradient goes through them (Zheng et al., 2025, GSPO,
      section 5.3).

  Returns:
    i32[T, X] and f32[T, X].
  """
  if m.scoring == "softmax":
    scores_TE = choice_TE = jax.nn.softmax(logits_TE, axis=-1)
  else:
    scores_TE = jax.nn.sigmoid(logits_TE)
    corrected_TE = scores_TE if correction_E is None else scores_TE + correction_E
    choice_TE = _best_groups(corrected_TE, m)
  _, experts_TX = jax.lax.top_k(choice_TE, m.top_k)
  if recorded_TX is not None:
    experts_TX = jnp.where(recorded_TX >= 0, recorded_TX, experts_TX)
  weights_TX = jnp.take_along_axis(scores_TE, experts_TX, axis=-1)
  if m.normalize:
    weights_TX = weights_TX / (jnp.sum(weights_TX, axis=-1, keepdims=True) + 1e-20)
  return experts_TX, weights_TX * m.weight_scale


def _best_groups(choice_TE: jax.Array, m: MoeConfig) -> jax.Array:
  """`choice_TE` with -inf in all groups but the best ones."""
  choice_TGE = choice_TE.reshape(-1, m.num_groups, m.num_experts // m.num_groups)
  best_TG = jnp.sum(jax.lax.top_k(choice_TGE, min(2, choice_TGE.shape[-1]))[0], axis=-1)
  _, chosen = jax.lax.top_k(best_TG, m.top_groups)
  kept_TG = jnp.any(jax.nn.one_hot(chosen, m.num_groups, dtype=bool), axis=1)
  return jnp.where(kept_TG[..., None], choice_TGE, -jnp.inf).reshape(choice_TE.shape)


def measure(
  logits_TE: jax.Array, experts_TX: jax.Array, m: MoeConfig, valid_T: jax.Array | None
) -> Routed:
  """What a router did on the valid tokens; the choice carries no gradient, the rest does."""
  weight_T = jnp.ones(len(logits_TE)) if valid_T is None else valid_T.astype(jnp.float32)
  if m.scoring == "softmax":
    probs_TE = jax.nn.softmax(logits_TE, axis=-1)
  else:
    scores_TE = jax.nn.sigmoid(logits_TE)
    probs_TE = scores_TE / (jnp.sum(scores_TE, axis=-1, keepdims=True) + 1e-20)
  counts_E = jnp.zeros(m.num_experts).at[experts_TX].add(weight_T[:, None])
  z_T = jnp.square(jax.nn.logsumexp(logits_TE, axis=-1))
  return Routed(experts_TX, counts_E, weight_T @ probs_TE, weight_T @ z_T)


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


class Experts(nnx.Module):
  """Router and experts in place of a feed-forward layer; parameters of all layers of a stack."""

  def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, num_layers: int):
    c, m, lead, first = config, config.experts, (num_layers,), ("layers",)
    init, zeros = nnx.initializers.normal(c.d_model**-0.5), nnx.initializers.zeros
    up = (*lead, m.num_experts, c.d_model, m.d_ff), (*first, "expert", "embed", "expert_ff")
    down = (*lead, m.num_experts, m.d_ff, c.d_model), (*first, "expert", "expert_ff", "embed")
    self.router = param(rngs, (*lead, c.d_model, m.num_experts), (*first, "embed", "experts"), init)
    self.e_gate = param(rngs, *up, init)
    self.e_up = param(rngs, *up, init)
    self.e_down = param(rngs, *down, init)
    if m.scoring == "sigmoid":
      self.correction = param(rngs, (*lead, m.num_experts), (*first, "experts"), zeros)
    if m.biases:
      wide = (*lead, m.num_experts, m.d_ff), (*first, "expert", "expert_ff")
      self.router_bias = param(rngs, (*lead, m.num_experts), (*first, "experts"), zeros)
      self.gate_bias = param(rngs, *wide, zeros)
      self.up_bias = param(rngs, *wide, zeros)
      self.down_bias = param(
        rngs, (*lead, m.num_experts, c.d_model), (*first, "expert", "embed"), zeros
      )
    if m.shared_d_ff:
      self.shared = GatedMlp(c, rngs, num_layers, m.shared_d_ff)

  def __call__(
    self, x: jax.Array, c: DecoderConfig, told: Told = ALONE
  ) -> tuple[jax.Array, Routed]:
    """x[..., D] to the weighted sum of its experts' outputs, and what the router did."""
    m, x_TD = c.experts, x.reshape(-1, c.d_model)
    logits_TE = self._router_logits(x_TD, m)
    correction_E = self.correction[...] if m.scoring == "sigmoid" else None
    experts_TX, weights_TX = route(logits_TE, m, correction_E, told.experts_TX)
    routed = measure(logits_TE, experts_TX, m, told.valid_T)
    order_M = jnp.argsort(experts_TX.reshape(-1), stable=True)
    expert_M = experts_TX.reshape(-1)[order_M]
    out_MD = self._apply(x_TD[order_M // m.top_k], expert_M, c)
    # Each token's outputs return to its own place: a sum in fixed order, not a scatter.
    back_M = jnp.argsort(order_M)
    out_TXD = out_MD[back_M].reshape(-1, m.top_k, c.d_model)
    out = jnp.einsum("TXD,TX->TD", out_TXD, weights_TX).astype(x.dtype).reshape(x.shape)
    return (out + self.shared(x, c) if m.shared_d_ff else out), routed

  def _router_logits(self, x_TD: jax.Array, m: MoeConfig) -> jax.Array:
    # float32: a choice between close experts must not depend on the products' dtype.
    router_DE = self.router[...].astype(jnp.float32)
    logits_TE = jnp.einsum("TD,DE->TE", x_TD.astype(jnp.float32), router_DE)
    return logits_TE + self.router_bias[...] if m.biases else logits_TE

  def _apply(self, x_MD: jax.Array, expert_M: jax.Array, c: DecoderConfig) -> jax.Array:
    """The experts' outputs f32[M, D] of rows sorted by expert."""
    m = c.experts
    sizes_E = jnp.bincount(expert_M, length=m.num_experts).astype(jnp.int32)

    def grouped(x, w, bias):
      y = grouped_product(x, w[...], sizes_E, expert_M, c.matmul_dtype)
      return y + bias[...][expert_M] if m.biases else y

    gate = grouped(x_MD, self.e_gate, m.biases and self.gate_bias)
    up = grouped(x_MD, self.e_up, m.biases and self.up_bias)
    if m.swiglu_limit is None:
      hidden = activation(c)(gate) * up
    else:
      gate = jnp.minimum(gate, m.swiglu_limit)
      up = jnp.clip(up, -m.swiglu_limit, m.swiglu_limit)
      hidden = (up + 1) * gate * jax.nn.sigmoid(m.swiglu_alpha * gate)
    return grouped(hidden.astype(x_MD.dtype), self.e_down, m.biases and self.down_bias)
