"""Parameters in bfloat16: a float32 master copy, or stochastic rounding in its place.

An update is often smaller than half a step of bfloat16, a 256th of the parameter; added to it
and rounded to the nearest it would be lost.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ptjax.train.rounding import keys_like, stochastic


class MasterState(NamedTuple):
  """float32 copies of the parameters, and the state of the optimiser that moves them."""

  master: Any
  inner: optax.OptState


def with_master(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """`inner` on a float32 copy; the parameters become the copy, rounded to their own dtype."""

  def init(params):
    master = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
    return MasterState(master, inner.init(master))

  def update(updates, state, params=None):
    moves, inner_state = inner.update(_wide(updates), state.inner, state.master)
    master: Any = optax.apply_updates(state.master, moves)
    # In float32, so that parameter plus update is the copy itself before it is rounded.
    updates = jax.tree.map(lambda new, p: new - p.astype(jnp.float32), master, params)
    return updates, MasterState(master, inner_state)

  return optax.GradientTransformation(init, update)


class StochasticState(NamedTuple):
  """Updates so far, which the random bits depend on, and the state of the optimiser."""

  count: jax.Array
  inner: optax.OptState


def with_stochastic_rounding(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """`inner`, its result rounded stochastically where a parameter is bfloat16."""

  def init(params):
    return StochasticState(jnp.zeros((), jnp.int32), inner.init(_wide(params)))

  def update(updates, state, params=None):
    wide = _wide(params)
    moves, inner_state = inner.update(_wide(updates), state.inner, wide)

    def rounded(param, old, move, key):
      if param.dtype != jnp.bfloat16:
        return move
      return stochastic(old + move, "bfloat16", key).astype(jnp.float32) - old

    keys = keys_like(params, state.count)
    updates = jax.tree.map(rounded, params, wide, moves, keys)
    return updates, StochasticState(state.count + 1, inner_state)

  return optax.GradientTransformation(init, update)


def _wide(tree):
  return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
