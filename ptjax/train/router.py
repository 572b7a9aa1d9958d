"""Training of routers: auxiliary losses over the global batch, the correction of their choice."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from ptjax.algos.router import balance_loss, corrected, load_statistics, z_loss
from ptjax.experience.packing import Rows
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.models.experts import Routed
from ptjax.train.forward import routed_states

LOAD = "router/load"  # of the metrics of a loss, until the trainer has made numbers of it


@dataclasses.dataclass(frozen=True)
class RouterConfig:
  """How the routers of a mixture of experts are trained, see `algos.router`.

  Attributes:
    balance_coef: weight of the load-balance loss, 0.001 to 0.01; it needs the load of the global
      batch first, a forward pass more.
    z_coef: weight of the z-loss, about 0.001.
    bias_rate: step of the correction of the choice after each update (DeepSeek-V3: 0.001), for
      models with sigmoid routing, which have one.
  """

  balance_coef: float = 0.0
  z_coef: float = 0.0
  bias_rate: float = 0.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not 0 <= value < float("inf"):
        raise ValueError(f"model.router.{field.name} {value} must be >= 0 and finite")

  def check(self, model: DecoderConfig, *, adapters: bool) -> None:
    """Raises ValueError where the model has no such router, or it does not train."""
    if model.moe is None:
      raise ValueError("model.router: the model has no experts; set model.router to None")
    if self.bias_rate and model.moe.scoring != "sigmoid":
      raise ValueError(
        f"model.router.bias_rate {self.bias_rate}: softmax routing has no correction; use "
        f"balance_coef"
      )
    if self.bias_rate and adapters:
      raise ValueError(
        f"model.router.bias_rate {self.bias_rate} with model.lora: the correction belongs to the "
        f"frozen base; set bias_rate to 0"
      )


class Load(NamedTuple):
  """Choices of each expert, those dropped, and tokens; of a micro-batch or of a global batch."""

  counts_LE: jax.Array
  dropped_L: jax.Array
  tokens: jax.Array

  def merge(self, other: "Load") -> "Load":
    return Load(*(a + b for a, b in zip(self, other, strict=True)))


def load_of(routed: Routed, rows: Rows) -> Load:
  """What the routers did, on the packed tokens of the rows."""
  tokens = jnp.sum(jnp.asarray(rows.segment_ids_BT) > 0).astype(jnp.float32)
  return Load(*jax.lax.stop_gradient((routed.counts_E, routed.dropped)), tokens)


def measure_load(
  params: Params, rows: Rows, *, model: DecoderConfig, config: RouterConfig, constrain: Constrain
) -> Load:
  """The load of a micro-batch; without a balance loss the tokens only, which need no pass."""
  if config.balance_coef:
    return load_of(routed_states(model, params, rows, constrain)[1], rows)
  tokens = jnp.sum(jnp.asarray(rows.segment_ids_BT) > 0).astype(jnp.float32)
  return Load(jnp.zeros(()), jnp.zeros(()), tokens)


def with_router(
  loss: jax.Array,
  metrics: Mapping[str, Any],
  routed: Routed,
  rows: Rows,
  whole: Load,
  config: RouterConfig,
) -> tuple[jax.Array, dict[str, Any]]:
  """Adds the auxiliary losses, as shares of those of the global batch `whole`."""
  if config.balance_coef:
    loss += config.balance_coef * balance_loss(whole.counts_LE, routed.probs_E, whole.tokens)
  if config.z_coef:
    loss += config.z_coef * z_loss(routed.z, whole.tokens)
  return loss, {**metrics, LOAD: load_of(routed, rows)}


class RouterTraining(NamedTuple):
  """What a trainer needs to train routers.

  Attributes:
    measure: `(params, batch) -> Load` of a micro-batch, before the gradients.
    bias_rate: see `RouterConfig`.
  """

  measure: Callable[[Params, Any], Load]
  bias_rate: float

  @classmethod
  def of(
    cls, config: RouterConfig, model: DecoderConfig, constrain: Constrain, *, adapters: bool
  ) -> Self:
    """Checks the configuration against the model."""
    config.check(model, adapters=adapters)

    @jax.jit
    def measure(params: Params, batch: Any) -> Load:
      return measure_load(params, batch.rows, model=model, config=config, constrain=constrain)

    return cls(measure, config.bias_rate)

  def whole(self, params: Params, batches: Iterable[Any]) -> Load:
    """The load of a global batch of one micro-batch or more."""
    return functools.reduce(Load.merge, (self.measure(params, batch) for batch in batches))


def load_metrics(load: Load) -> dict[str, jax.Array]:
  """router/entropy, max_share and dropped_frac of each layer, counted among those with experts."""
  choices_L = jnp.maximum(jnp.sum(load.counts_LE, axis=-1), 1)
  statistics = load_statistics(load.counts_LE) | {"dropped_frac": load.dropped_L / choices_L}
  return {
    f"router/{name}/{layer}": value
    for name, values in statistics.items()
    for layer, value in enumerate(values)
  }


@jax.jit
def _corrected(
  correction_LE: jax.Array, counts_LE: jax.Array, rate: float | jax.Array
) -> jax.Array:
  return corrected(correction_LE, counts_LE, rate)


def correct_choice(params: Params, load: Load, rate: float) -> Params:
  """Parameters with the correction of each router moved by the load of an update."""
  experts = params["layers"]["mlp"]
  moved = jax.device_put(
    _corrected(experts["correction"], load.counts_LE, rate), experts["correction"].sharding
  )
  return params | {"layers": params["layers"] | {"mlp": experts | {"correction": moved}}}
