"""The two compiled programs of the engine: prefill of prompts, a chunk of decode steps."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ptjax.kernels.decode import decode_attention
from ptjax.models import decoder, forward_pass, heads
from ptjax.models.config import DecoderConfig
from ptjax.models.layers import norm, rotations
from ptjax.rollout.sampling import SamplingParams, sample
from ptjax.rollout.weights import EngineWeights

# C: tokens of one chunk. P: prompts of one prefill. X: stop tokens of a slot, padded with -1.


class Cache(NamedTuple):
  """Keys and values of every slot, one array a layer so that each is updated in place."""

  k_RKHS: tuple[jax.Array, ...]
  v_RKSH: tuple[jax.Array, ...]


class Slots(NamedTuple):
  """Per-slot state of the decode loop.

  Attributes:
    token_R: the last token, whose keys and values are not in the cache yet.
    length_R: tokens in the cache.
    limit_R: tokens at which the slot stops for length.
    done_R: nothing more is sampled here.
    key_R: key of the request; the key of a token is fold_in(key, position).
    stop_RX: ids that end the request.
    sampling: settings of each slot.
  """

  token_R: jax.Array
  length_R: jax.Array
  limit_R: jax.Array
  done_R: jax.Array
  key_R: jax.Array
  stop_RX: jax.Array
  sampling: SamplingParams


class Chunk(NamedTuple):
  """Tokens sampled by one call, valid where the count of the slot says so.

  With recording, `routes_RCLX` holds the experts of the token *before* each of them, in the layers
  that have experts; else None.
  """

  tokens_RC: jax.Array
  logprobs_RC: jax.Array
  count_R: jax.Array
  routes_RCLX: jax.Array | None = None


def route_dtype(config: DecoderConfig) -> np.dtype:
  """The smallest type that holds the experts' numbers, and -1."""
  return np.dtype(np.int8 if config.experts.num_experts <= 128 else np.int16)


def empty_cache(config: DecoderConfig, slots: int, max_length: int) -> Cache:
  """A cache of zeros in the activation dtype."""
  heads, layers = (slots, config.num_kv_heads), range(config.num_layers)
  zeros = functools.partial(jnp.zeros, dtype=config.activation_dtype)
  return Cache(
    tuple(zeros((*heads, config.head_dim, max_length)) for _ in layers),
    tuple(zeros((*heads, max_length, config.value_dim)) for _ in layers),
  )


@functools.partial(jax.jit, static_argnums=(0, 3))
def prefill(
  config: DecoderConfig, params: decoder.Params, tokens_PT: jax.Array, record: bool = False
):
  """Keys and values (k_LPTKH, v_LPTKH) of prompts padded at the end.

  With `record`, and after them, the experts of each token, routes_PTLX.

  Padding needs no mask: a later position is never seen by an earlier one, and the
  decode loop reads only as many keys as the slot's length says.
  """
  positions_PT = jnp.broadcast_to(jnp.arange(tokens_PT.shape[1]), tokens_PT.shape)
  ones = jnp.ones_like(tokens_PT)
  packed = decoder.Packed(tokens_PT, positions_PT, ones, jnp.zeros_like(tokens_PT))
  _, kv, *rest = decoder.bind(config, params)(packed, keep_kv=True, keep_routing=record)
  if not record:
    return kv
  return kv, jnp.moveaxis(rest[0].experts_TX, 0, 2).astype(route_dtype(config))


@functools.partial(jax.jit, donate_argnums=0)
def insert(cache: Cache, kv_LPTKH, rows_R: jax.Array, take_R: jax.Array) -> Cache:
  """Copies prefilled prompt `rows_R[r]` into each slot r where `take_R`.

  The rest of the slot becomes 0: what the last request left there is never multiplied, not
  even by a weight of 0, which a nan would survive.
  """

  def put(old, new, axis):
    """`axis`: of the positions in `old`."""
    tail = [(0, 0)] * 4
    tail[axis] = (0, old.shape[axis] - new.shape[axis])
    return jnp.where(take_R[:, None, None, None], jnp.pad(new, tail)[rows_R], old)

  k_LPKHT, v_LPKTH = jnp.moveaxis(kv_LPTKH[0], 2, 4), jnp.moveaxis(kv_LPTKH[1], 2, 3)
  return Cache(
    tuple(put(old, k_LPKHT[i], axis=3) for i, old in enumerate(cache.k_RKHS)),
    tuple(put(old, v_LPKTH[i], axis=2) for i, old in enumerate(cache.v_RKSH)),
  )


@jax.jit
def take_rows(cache: Cache, rows_N: jax.Array) -> Cache:
  """The cache of the rows named, in their order."""
  return jax.tree.map(lambda x: x[rows_N], cache)


@functools.partial(jax.jit, static_argnums=(0, 1, 5), donate_argnums=(3, 4))
def decode_chunk(
  config: DecoderConfig,
  num_steps: int,
  weights: EngineWeights,
  cache: Cache,
  slots: Slots,
  record: bool = False,
) -> tuple[Cache, Slots, Chunk]:
  """Samples up to `num_steps` tokens in every slot that is not done."""
  rows = slots.token_R.shape[0]
  chunk = Chunk(
    jnp.zeros((rows, num_steps), jnp.int32),
    jnp.zeros((rows, num_steps), jnp.float32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros((rows, num_steps, *routes_shape(config)), route_dtype(config)) if record else None,
  )

  def unfinished(carry):
    step, _, slots, _ = carry
    return (step < num_steps) & ~jnp.all(slots.done_R)

  def one_token(carry):
    step, cache, slots, chunk = carry
    logits_RV, cache, routes = next_logits(config, weights, cache, slots.token_R, slots.length_R)
    keys_R = jax.vmap(jax.random.fold_in)(slots.key_R, slots.length_R)
    tokens_R, logprobs_R = sample(logits_RV, keys_R, slots.sampling)
    live_R = ~slots.done_R
    length_R = slots.length_R + live_R
    stopped_R = jnp.any(tokens_R[:, None] == slots.stop_RX, axis=-1)
    chunk = Chunk(
      chunk.tokens_RC.at[:, step].set(tokens_R),
      chunk.logprobs_RC.at[:, step].set(logprobs_R),
      chunk.count_R + live_R,
      chunk.routes_RCLX.at[:, step].set(_routes_RLX(routes, config)) if record else None,
    )
    slots = slots._replace(
      token_R=jnp.where(live_R, tokens_R, slots.token_R),
      length_R=length_R,
      # The sampled token itself is not in the cache yet, hence the 1.
      done_R=slots.done_R | stopped_R | (length_R + 1 >= slots.limit_R),
    )
    return step + 1, cache, slots, chunk

  _, cache, slots, chunk = jax.lax.while_loop(unfinished, one_token, (0, cache, slots, chunk))
  return cache, slots, chunk


def routes_shape(config: DecoderConfig) -> tuple[int, int]:
  return config.stacks["layers"], config.experts.top_k


def _routes_RLX(routes_RX: list[jax.Array], config: DecoderConfig) -> jax.Array:
  return jnp.stack(routes_RX, axis=1).astype(route_dtype(config))


def layers_of(config: DecoderConfig, weights: EngineWeights) -> list[decoder.Block]:
  """The blocks of the decode loop, in order, each with its own parameters."""
  model = decoder.abstract(config)
  graphs = [
    nnx.graphdef(getattr(model, stack))
    for stack, num_layers in config.stacks.items()
    for _ in range(num_layers)
  ]
  return [nnx.merge(graph, layer) for graph, layer in zip(graphs, weights.layers, strict=True)]


def next_logits(
  config: DecoderConfig,
  weights: EngineWeights,
  cache: Cache,
  token_R: jax.Array,
  length_R: jax.Array,
) -> tuple[jax.Array, Cache, list[jax.Array]]:
  """Logits f32[R, V] after each slot's last token, which enters the cache at `length_R`.

  With the cache come the experts i32[R, X] of that token in each layer that has experts.
  """
  c = config
  rows = jnp.arange(token_R.shape[0])
  keys, values, routes = list(cache.k_RKHS), list(cache.v_RKSH), []
  x_RD = forward_pass.embed(weights.decode["embed"]["table"], token_R, c)
  by_kind = rotations(length_R, c)
  for i, layer in enumerate(layers_of(c, weights)):

    def attend(q_RNH, k_RKH, v_RKH, sinks_N, i=i):
      keys[i] = keys[i].at[rows, :, :, length_R].set(k_RKH, mode="drop")
      values[i] = values[i].at[rows, :, length_R].set(v_RKH, mode="drop")
      heads_RNH = decode_attention(
        q_RNH,
        keys[i],
        values[i],
        length_R + 1,
        scores=forward_pass.scores_of(c),
        window=c.layer_window(i),
        pattern=c.pattern,
        sinks_N=sinks_N,
      )
      return heads_RNH, None

    x_RD, _, routed = layer(x_RD, by_kind[c.layer_rope(i)], attend, c)
    if routed is not None:
      routes.append(routed.experts_TX)
  hidden_RD = norm(x_RD, weights.decode["final_norm"]["scale"], c)
  logits_RV = heads.logits(weights.decode, hidden_RD, config)
  return logits_RV, Cache(tuple(keys), tuple(values)), routes
