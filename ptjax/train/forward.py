"""What the losses need of a network: log-probs, entropies and values at action slots."""

import jax
import jax.numpy as jnp

from ptjax.algos.logprobs import logprobs_and_entropy
from ptjax.experience.packing import Rows
from ptjax.kernels.context import take_tokens
from ptjax.models import decoder, forward_pass, heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params, unconstrained
from ptjax.models.experts import Routed
from ptjax.rollout.sampling import SamplingConfig, SamplingParams, keep_mask

# C: action slots of one chunk.


def action_states(
  model: DecoderConfig, params: Params, rows: Rows, constrain: Constrain = unconstrained
) -> jax.Array:
  """hidden_BAD: the final state before each action; the state of index 0 at unused slots."""
  network = decoder.bind(model, params)
  hidden_BTD = network(_packed(rows), constrain=constrain, recorded_LBTX=_recorded(rows))
  return _at_actions(hidden_BTD, model, rows, constrain)


def routed_states(
  model: DecoderConfig, params: Params, rows: Rows, constrain: Constrain = unconstrained
) -> tuple[jax.Array, Routed]:
  """`action_states`, and what the routers of a mixture of experts did in all rows."""
  network = decoder.bind(model, params)
  hidden_BTD, routed = network(
    _packed(rows), constrain=constrain, keep_routing=True, recorded_LBTX=_recorded(rows)
  )
  return _at_actions(hidden_BTD, model, rows, constrain), routed


def _packed(rows: Rows) -> decoder.Packed:
  ids = rows.tokens_BT, rows.positions_BT, rows.segment_ids_BT, rows.branch_ids_BT
  return decoder.Packed(*map(jnp.asarray, ids))


def _recorded(rows: Rows) -> jax.Array | None:
  """recorded_LBTX, the experts to replay."""
  return None if rows.routes_BTLX is None else jnp.moveaxis(jnp.asarray(rows.routes_BTLX), 2, 0)


def _at_actions(
  hidden_BTD: jax.Array, model: DecoderConfig, rows: Rows, constrain: Constrain
) -> jax.Array:
  context = forward_pass.context_of(constrain, model)
  if context is not None and context.layout.shards > 1:
    return take_tokens(context, hidden_BTD, jnp.asarray(rows.predictor_BA))
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
  target_BA = jnp.asarray(rows.target_BA)
  shards = _shards(model, constrain)
  return state_logprobs(model, params, hidden_BAD, target_BA, sampling, chunk, shards)


def _shards(model: DecoderConfig, constrain: Constrain) -> int:
  context = forward_pass.context_of(constrain, model)
  return 1 if context is None else context.layout.shards


def routed_logprobs(
  model: DecoderConfig,
  params: Params,
  rows: Rows,
  sampling: SamplingConfig,
  *,
  chunk: int,
  constrain: Constrain = unconstrained,
) -> tuple[jax.Array, jax.Array, Routed]:
  """`action_logprobs`, and what the routers did."""
  hidden_BAD, routed = routed_states(model, params, rows, constrain)
  target_BA = jnp.asarray(rows.target_BA)
  shards = _shards(model, constrain)
  return *state_logprobs(model, params, hidden_BAD, target_BA, sampling, chunk, shards), routed


def state_logprobs(
  model: DecoderConfig,
  params: Params,
  hidden_BAD: jax.Array,
  target_BA: jax.Array,
  sampling: SamplingConfig,
  chunk: int,
  shards: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """(logp_BA, entropy_BA) of the targets after given states; see `action_logprobs`.

  The memory that it takes does not grow with vocabulary times slots: at any time the logits of
  `chunk` slots a row exist, in the backward pass too; where the slots are cut over `shards`
  devices, so many on each.
  """
  if shards > 1:
    return _sharded_logprobs(model, params, hidden_BAD, target_BA, sampling, chunk, shards)

  def some(hidden_BCD, target_BC):
    flat_AD = hidden_BCD.reshape(-1, model.d_model)
    logits = heads.logits(params, flat_AD, model)
    logits = logits.reshape(*target_BC.shape, -1)
    if sampling.filtered:
      logits = jnp.where(support(logits, target_BC, sampling), logits, -jnp.inf)
    return logprobs_and_entropy(logits, target_BC, sampling.temperature)

  rows, slots = target_BA.shape
  if slots <= chunk:
    return some(hidden_BAD, target_BA)
  num_chunks = -(-slots // chunk)
  missing = num_chunks * chunk - slots

  def cut(x):
    """[B, A, ...] to [chunks, B, C, ...]; what is added is dropped again below."""
    x = jnp.pad(x, ((0, 0), (0, missing), *((0, 0) for _ in x.shape[2:])))
    return x.reshape(rows, num_chunks, chunk, *x.shape[2:]).swapaxes(0, 1)

  # A loop of the program, not of Python: the compiler may run unrolled chunks side by side, and
  # on CPUs did.
  one = jax.checkpoint(lambda pair: some(*pair))
  parts = jax.lax.map(one, (cut(hidden_BAD), cut(target_BA)))
  logp_BA, entropy_BA = (x.swapaxes(0, 1).reshape(rows, -1)[:, :slots] for x in parts)
  return logp_BA, entropy_BA


def _sharded_logprobs(model, params, hidden_BAD, target_BA, sampling, chunk: int, shards: int):
  """`state_logprobs` by pieces of [B, shards, C] slots, of which each device has its part."""

  def some(hidden_BRCD, target_BRC):
    logits = heads.logits(params, hidden_BRCD, model)
    if sampling.filtered:
      flat = logits.reshape(logits.shape[0], -1, logits.shape[-1])
      keep = support(flat, target_BRC.reshape(flat.shape[:2]), sampling)
      logits = jnp.where(keep.reshape(logits.shape), logits, -jnp.inf)
    return logprobs_and_entropy(logits, target_BRC, sampling.temperature)

  rows, slots = target_BA.shape
  mine = -(-slots // shards)
  chunk = min(chunk, mine)
  mine = -(-mine // chunk) * chunk

  def cut(x):
    """[B, A, ...] to [pieces, B, R, C, ...]."""
    x = jnp.pad(x, ((0, 0), (0, mine * shards - slots), *((0, 0) for _ in x.shape[2:])))
    return jnp.moveaxis(x.reshape(rows, shards, -1, chunk, *x.shape[2:]), 2, 0)

  one = jax.checkpoint(lambda pair: some(*pair))
  parts = jax.lax.map(one, (cut(hidden_BAD), cut(target_BA)))
  logp_BA, entropy_BA = (jnp.moveaxis(x, 0, 2).reshape(rows, -1)[:, :slots] for x in parts)
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
