"""The trainer's parameters in the form that the decode loop reads fastest."""

import functools
from typing import NamedTuple

import jax

from ptjax.models.decoder import Params


class EngineWeights(NamedTuple):
  """One version of the policy, for decoding.

  Attributes:
    params: the trainer's arrays themselves (shared, not copied).
    layers: the block parameters cut into one tree a layer: a slice of the stacked
      arrays inside the decode loop would be copied at every token.
  """

  params: Params
  layers: tuple[Params, ...]


@functools.partial(jax.jit, static_argnums=1)
def _cut(stacked: Params, num_layers: int) -> tuple[Params, ...]:
  return tuple(jax.tree.map(lambda x: x[i], stacked) for i in range(num_layers))  # noqa: B023


def engine_weights(params: Params, num_layers: int) -> EngineWeights:
  """Prepares `params` for the engine; call once for each new version of the policy."""
  return EngineWeights(params, _cut(params["layers"], num_layers))
