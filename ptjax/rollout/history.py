"""Keys and values of requests that are to go on: an episode that waits for its environment.

What is kept is a copy of the slot's row of the cache, so the slot serves others meanwhile. The next
turn computes only what has come since. Kept rows are few: the one that has waited longest goes
first, and its next turn is computed from the start like any other. None outlives its weights.
"""

import collections
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.kernels.decode import decode_attention
from ptjax.models import forward_pass
from ptjax.models.config import DecoderConfig
from ptjax.models.layers import rotations
from ptjax.rollout.decode import Cache, layers_of, take_rows
from ptjax.rollout.scheduler import Completion, Request
from ptjax.rollout.weights import EngineWeights

EXTENSION = 256
"""Tokens of one program at most: its scores take tokens * heads * length floats."""


class Kept(NamedTuple):
  """A row of the cache, [1, ...], and the tokens i32[n] whose keys and values its start holds."""

  tokens: np.ndarray
  row: Cache


class History:
  """The kept rows, by the request that they come from."""

  def __init__(self, limit: int, place: Callable[[Cache], Cache]):
    """At most `limit` rows, each put by `place` where the engine's cache is."""
    self._limit, self._place = limit, place
    self._kept: collections.OrderedDict[int, Kept] = collections.OrderedDict()

  def __len__(self) -> int:
    return len(self._kept)

  def keep(self, request: Request, done: Completion, cache: Cache, row: int) -> None:
    """Keeps a finished request's row of the cache where it asks for that; the oldest makes room."""
    if not request.keep or not self._limit:
      return
    # The last token was sampled and never read.
    tokens = np.concatenate([request.prompt, done.tokens[:-1]]).astype(np.int32)
    kept = self._place(take_rows(cache, np.asarray([row], np.int32)))
    self._kept[request.id] = Kept(tokens, kept)
    while len(self._kept) > self._limit:
      self._kept.popitem(last=False)

  def take(self, request: Request) -> Kept | None:
    """What the request goes on from; None where it is gone, or its prompt goes on otherwise."""
    if request.continues is None:
      return None
    kept = self._kept.pop(request.continues, None)
    if kept is None or len(kept.tokens) >= len(request.prompt):
      return None
    return kept if np.array_equal(kept.tokens, request.prompt[: len(kept.tokens)]) else None

  def drop(self, request_id: int) -> None:
    """Forgets a request, if it is known."""
    self._kept.pop(request_id, None)

  def clear(self) -> None:
    self._kept.clear()


def extend(
  config: DecoderConfig, weights: EngineWeights, kept: Kept, tokens: np.ndarray, smallest: int
) -> Cache:
  """The row with the keys and values of `tokens` after those that it holds.

  Args:
    config: that of the decode loop, and so are the weights.
    weights: of the version that computed the row.
    kept: its row is not used any more.
    tokens: i32[m].
    smallest: tokens of the smallest program; sizes are its multiples by powers of two.
  """
  row, start, smallest = kept.row, len(kept.tokens), min(smallest, EXTENSION)
  for first in range(0, len(tokens), EXTENSION):
    part = tokens[first : first + EXTENSION]
    size = smallest
    while size < len(part):
      size *= 2
    padded = np.zeros(min(size, EXTENSION), np.int32)
    padded[: len(part)] = part
    row = _extend(config, weights, row, padded, np.int32(start), np.int32(len(part)))
    start += len(part)
  return row


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _extend(
  config: DecoderConfig, weights: EngineWeights, row: Cache, tokens_T, start, count
) -> Cache:
  """One program: the first `count` of the tokens stand at positions from `start` on."""
  c = config
  positions_T = start + jnp.arange(tokens_T.shape[0])
  keys, values = list(row.k_RKHS), list(row.v_RKSH)
  x_TD = forward_pass.embed(weights.decode["embed"]["table"], tokens_T, c)
  by_kind = rotations(positions_T, c)
  for i, layer in enumerate(layers_of(c, weights)):

    def attend(q_TNH, k_TKH, v_TKH, sinks_N, i=i):
      keys[i] = keys[i].at[0, :, :, positions_T].set(k_TKH, mode="drop")
      values[i] = values[i].at[0, :, positions_T].set(v_TKH, mode="drop")

      def one(q_NH, length):
        return decode_attention(
          q_NH[None],
          keys[i],
          values[i],
          length[None],
          scores=forward_pass.scores_of(c),
          window=c.layer_window(i),
          sinks_N=sinks_N,
        )[0]

      return jax.vmap(one)(q_TNH, positions_T + 1), None

    x_TD, _, _ = layer(x_TD, by_kind[c.layer_rope(i)], attend, c)
  # Past the end stand keys of padding, or of what was sampled after a stop string.
  known_S = jnp.arange(keys[0].shape[-1]) < start + count
  return Cache(
    tuple(jnp.where(known_S, k_RKHS, 0) for k_RKHS in keys),
    tuple(jnp.where(known_S[:, None], v_RKSH, 0) for v_RKSH in values),
  )


@functools.partial(jax.jit, donate_argnums=0)
def put_row(cache: Cache, row: Cache, at) -> Cache:
  """Copies a kept row to row `at` of the cache."""
  return jax.tree.map(lambda x, r: jax.lax.dynamic_update_slice_in_dim(x, r, at, 0), cache, row)
