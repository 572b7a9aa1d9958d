"""What the losses need of a network: log-probs, entropies and values at action slots."""

import jax
import jax.numpy as jnp

from ptjax.algos.logprobs import logprobs_and_entropy
from ptjax.experience.packing import Rows
from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params, unconstrained
from ptjax.rollout.sampling import SamplingConfig, SamplingParams, keep_mask

# C: action slots of one chunk.


def action_states(
  model: DecoderConfig, params: Params, rows: Rows, constrain: Constrain = unconstrained
) -> jax.Array:
  """hidden_BAD: the final state before each action; the state of index 0 at unused slots."""
  ids = rows.tokens_BT, rows.positions_BT, rows.segment_ids_BT, rows.branch_ids_BT
  packed = decoder.Packed(*map(jnp.asarray, ids))
  hidden_BTD = decoder.bind(model, params)(packed, constrain=constrain)
  return jnp.take_along_axis(hidden_BTD, rows.predictor_BA[:, :, None], axis=1)


def action_logprobs(
  model: DecoderConfig,
  params: Params,
  rows: Rows,
  sampling: SamplingConfig,
  *,
  chunk: int,
  constrain: Constrain = unconstrained,
) -> tuple[jax.Array, jax.Array]:
  """(logp_BA, entropy_BA) of the actions under the sampling distribution, f32.

  Temperature and filters are the sampler's. The logits of `chunk` slots a row exist at a
  time; where that is not all of them, the backward pass computes them again. Unused slots
  hold numbers without meaning.
  """
  hidden_BAD = action_states(model, params, rows, constrain)

  def some(hidden_BCD, target_BC):
    flat_AD = hidden_BCD.reshape(-1, model.d_model)
    logits = heads.logits(params, flat_AD, model)
    logits = logits.reshape(*target_BC.shape, -1)
    if sampling.filtered:
      logits = jnp.where(support(logits, target_BC, sampling), logits, -jnp.inf)
    return logprobs_and_entropy(logits, target_BC, sampling.temperature)

  num_slots = rows.target_BA.shape[1]
  cuts = range(0, num_slots, chunk)
  if len(cuts) > 1:
    some = jax.checkpoint(some)
  parts = [some(hidden_BAD[:, i : i + chunk], rows.target_BA[:, i : i + chunk]) for i in cuts]
  logp_BA, entropy_BA = (jnp.concatenate(column, axis=1) for column in zip(*parts, strict=True))
  return logp_BA, entropy_BA


def support(logits_BCV: jax.Array, target_BC: jax.Array, sampling: SamplingConfig) -> jax.Array:
  """bool[B, C, V], the ids that the sampler could have drawn; the drawn id always is one.

  The trainer's logits differ from the sampler's in the last bits, which may move the edge
  of the support over the drawn id.
  """
  flat = jax.lax.stop_gradient(logits_BCV).reshape(-1, logits_BCV.shape[-1])
  z = flat / sampling.temperature
  weights = jnp.exp(z - jnp.max(z, axis=-1, keepdims=True))
  keep = keep_mask(weights, SamplingParams.of(sampling, flat.shape[0]))
  keep = keep.at[jnp.arange(flat.shape[0]), target_BC.reshape(-1)].set(True)
  return keep.reshape(logits_BCV.shape)


def action_values(
  model: DecoderConfig, params: Params, rows: Rows, constrain: Constrain = unconstrained
) -> jax.Array:
  """values_BA f32: the value of the state before each action.

  `params` holds a trunk of its own and a head: {"trunk": ..., "head": ...}.
  """
  return heads.values(params["head"], action_states(model, params["trunk"], rows, constrain))
