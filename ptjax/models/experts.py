"""Mixture of experts: the router, and the module; the products are in `models.mixture`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ptjax.models import mixture
from ptjax.models.config import DecoderConfig, MoeConfig
from ptjax.models.feedforward import GatedMlp
from ptjax.models.layers import param

# E: experts. G: groups of experts. X: chosen experts of a token.


class Told(NamedTuple):
  """What the experts of a layer are told beside its input, T tokens flattened.

  Attributes:
    valid_T: bool, false for padding, which counts in no statistic; None: all are tokens.
    experts_TX: i32, recorded experts to use instead of the router's own choice, -1 where there is
      no record (router replay); None replays nothing.
    constrain: of the decoder: where a mesh splits the experts, they are computed where they are.
    axes: logical axes of the input but the last.
  """

  valid_T: jax.Array | None = None
  experts_TX: jax.Array | None = None
  constrain: Any = None
  axes: tuple[str, ...] = ()


ALONE = Told()


class Routed(NamedTuple):
  """What the router of a layer did; sums are over valid tokens, f32.

  Attributes:
    experts_TX: i32, the experts of each token.
    counts_E: tokens that each expert was chosen for.
    probs_E: sum of the router's probabilities; of sigmoid scores, divided by their sum.
    z: sum of squared log-sum-exps of the router's logits.
    dropped: choices that found no place at their expert; 0 where experts have no capacity.
  """

  experts_TX: jax.Array
  counts_E: jax.Array
  probs_E: jax.Array
  z: jax.Array
  dropped: jax.Array


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
  return Routed(experts_TX, counts_E, weight_T @ probs_TE, weight_T @ z_T, jnp.zeros(()))


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
    if c.capacity_factor is not None:
      size = mixture.capacity(len(x_TD), c)
      place_TX = mixture.places(experts_TX, told.valid_T, m.num_experts, size)
      routed = routed._replace(dropped=_dropped(place_TX, told.valid_T))
      choice = experts_TX, weights_TX, place_TX
      out_TD = mixture.with_capacity(x_TD, *choice, self._matrices(m), c, size)
    elif mixture.is_sharded(told.constrain):
      choice, where = (experts_TX, weights_TX), (told.constrain, told.axes)
      out_TD = mixture.sharded_dropless(x, *choice, self._matrices(m), c, *where)
    else:
      w = self._matrices(m)
      out_TD = mixture.dropless(x_TD, experts_TX, weights_TX, w, c, count=m.num_experts)
    out = out_TD.astype(x.dtype).reshape(x.shape)
    return (out + self.shared(x, c) if m.shared_d_ff else out), routed

  def _router_logits(self, x_TD: jax.Array, m: MoeConfig) -> jax.Array:
    # float32: a choice between close experts must not depend on the products' dtype.
    router_DE = self.router[...].astype(jnp.float32)
    logits_TE = jnp.einsum("TD,DE->TE", x_TD.astype(jnp.float32), router_DE)
    return logits_TE + self.router_bias[...] if m.biases else logits_TE

  def _matrices(self, m: MoeConfig) -> mixture.Matrices:
    matrices = self.e_gate[...], self.e_up[...], self.e_down[...]
    if not m.biases:
      return mixture.Matrices(*matrices)
    return mixture.Matrices(*matrices, self.gate_bias[...], self.up_bias[...], self.down_bias[...])


def _dropped(place_TX: jax.Array, valid_T: jax.Array | None) -> jax.Array:
  """Choices of tokens that found no place."""
  lost_TX = place_TX < 0 if valid_T is None else (place_TX < 0) & valid_T[:, None]
  return jnp.sum(lost_TX).astype(jnp.float32)
