"""A trainable network on the mesh: placement, gradient accumulation, update."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from ptjax.core.metrics import merge
from ptjax.models import decoder, heads, lora
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.sharding.rules import Constrainer, Rules, tree_shardings
from ptjax.train.optimizer import OptimizerConfig, learning_rate, make_optimizer
from ptjax.train.router import LOAD, RouterTraining, correct_choice, load_metrics


class TrainState(NamedTuple):
  """Parameters, optimiser state and the number of updates behind them."""

  params: Params
  opt_state: optax.OptState
  updates: jax.Array


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where a network's arrays live: one mesh, and the network's own rules."""

  mesh: Mesh
  rules: Rules

  def place(self, params: Any, axes: Any) -> Any:
    """Parameters onto the mesh, sharded by their logical axes."""
    return jax.device_put(params, tree_shardings(self.rules, self.mesh, axes, params))

  def abstract(self, shapes: Any, axes: Any) -> Any:
    """What `place` returns, as shapes with shardings."""
    return jax.tree.map(sharded_shape, shapes, tree_shardings(self.rules, self.mesh, axes, shapes))

  def abstract_rows(self, batch: Any) -> Any:
    """What `place_rows` returns, as shapes with shardings."""
    return jax.tree.map(lambda x: sharded_shape(x, self._row_sharding(x.shape)), batch)

  def place_rows(self, batch: Any) -> Any:
    """Arrays with a leading row axis onto the mesh, rows split over the batch axes."""

    def put(x: np.ndarray) -> jax.Array:
      return jax.device_put(x, self._row_sharding(x.shape))

    return jax.tree.map(put, batch)

  def _row_sharding(self, shape: tuple[int, ...]) -> NamedSharding:
    return self.rules.sharding(self.mesh, ("batch", *(None,) * (len(shape) - 1)), shape)

  @property
  def constrain(self) -> decoder.Constrain:
    return Constrainer(self.rules, self.mesh)


def critic_axes(model: DecoderConfig) -> Params:
  """Logical axes of a critic: a trunk of its own and a scalar head."""
  return {"trunk": decoder.logical_axes(model), "head": {"w": ("embed",), "b": ()}}


def critic_params(policy: Params, num_layers: int) -> Params:
  """A critic whose trunk is the policy's first layers, and whose head predicts 0."""
  trunk = {k: v for k, v in policy.items() if k != "lm_head"}
  dense = policy.get("first_layers")  # a stack of their own, and all of them in any trunk
  if dense is not None:
    num_layers -= len(dense["attn_norm"]["scale"])
  trunk["layers"] = jax.tree.map(
    lambda x: x if num_layers == len(x) else x[:num_layers], policy["layers"]
  )
  return {"trunk": trunk, "head": heads.init_value_head(policy["embed"]["table"].shape[1])}


class Frozen(NamedTuple):
  """What a network has beside what trains: the base under its adapters, shared and never copied.

  Attributes:
    base: parameters, plain or quantised.
    scale: of the adapters.
  """

  base: Params
  scale: float


class Trainer:
  """Compiled functions that train one network.

  A global batch comes as micro-batches; each adds its share of the gradient, then one
  update is applied. Nothing is divided here: the losses carry the global normaliser.
  """

  def __init__(
    self,
    loss: Callable,
    config: OptimizerConfig,
    num_updates: int,
    frozen: Frozen | None = None,
    router: RouterTraining | None = None,
  ):
    """`loss(params, batch) -> (share of the loss, metrics)`, of the whole network.

    With `frozen`, the parameters of the state are adapters, and the loss is of both joined. With
    `router`, the loss takes the load of the global batch as a third argument, and its metrics hold
    that of the micro-batch as `router.LOAD`.
    """
    self.frozen, self._router = frozen, router
    self._schedule = learning_rate(config, num_updates)
    self._optimizer = make_optimizer(config, self._schedule)
    self._loss, self._narrow = loss, config.narrow
    self._programs: dict[tuple, Any] = {}

  def init(self, params: Params) -> TrainState:
    """A state at update 0. The parameters are taken over: do not use them elsewhere.

    Raises:
      ValueError: parameters narrower than float32 that plain rounding would hold still.
    """
    self._check_dtypes(params)
    opt_state = jax.jit(self._optimizer.init)(params)
    state = TrainState(params, opt_state, jnp.zeros((), jnp.int32))
    return state._replace(
      opt_state=jax.device_put(opt_state, self._shardings(opt_state, params)),
      updates=jax.device_put(state.updates, _everywhere(params)),
    )

  def _check_dtypes(self, params: Params) -> None:
    narrow = {str(x.dtype) for x in jax.tree.leaves(params)} - {"float32"}
    if narrow and self._narrow == "none":
      raise ValueError(
        f"parameters in {', '.join(sorted(narrow))} with optimizer.narrow 'none': updates of less "
        f"than half a step would be lost; set optimizer.narrow to 'master' or 'stochastic'"
      )

  def abstract(self, params: Params) -> TrainState:
    """What `init` returns, as shapes with shardings, from parameters that are such shapes."""
    opt_state = jax.eval_shape(self._optimizer.init, params)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    placed = jax.tree.map(sharded_shape, opt_state, self._shardings(opt_state, params))
    updates: Any = sharded_shape(count, _everywhere(params))
    return TrainState(params, placed, updates)

  def lowering(self, state: TrainState, batch: Any) -> dict[str, Callable[[], jax.stages.Lowered]]:
    """What lowers the programs of `update` for abstract arguments: the gradient of a micro-batch
    and the update; with a router, what measures the load of a micro-batch too."""
    network = self.network(state.params)
    grads = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state.params
    )
    programs = {
      "gradient": lambda: self._lower_gradient(state.params, batch, *whole),
      "apply": lambda: self._apply(state).lower(state, grads),
    }
    whole: tuple = ()
    if self._router is not None:
      measure: Any = self._router.measure
      whole = (jax.eval_shape(measure, network, batch),)
      programs["load"] = lambda: measure.lower(network, batch)
    return programs

  def _lower_gradient(self, params: Params, *batch: Any) -> jax.stages.Lowered:
    gradient = self._gradient(params)
    if self.frozen is None:
      return gradient.lower(params, *batch)
    return gradient.func.lower(self.frozen.base, params, *batch)

  def _program(self, name: str, tree: Any, make: Callable[[Any], Any]) -> Any:
    """`make(shardings of the tree)`, made once; the results of a program lie where its inputs lie.

    Left to itself, the compiler may put a copy of the whole on every device; or it names the same
    place otherwise, and every program that reads the result is compiled anew.
    """
    shardings = jax.tree.map(lambda x: x.sharding, tree)
    key = (name, *jax.tree.leaves(shardings))
    if key not in self._programs:
      self._programs[key] = make(shardings)
    return self._programs[key]

  def _gradient(self, params: Params) -> Any:
    """The compiled gradient of a micro-batch."""

    def make(shardings: Any) -> Any:
      out, frozen = (shardings, None, None), self.frozen
      if frozen is None:
        return jax.jit(functools.partial(_gradient, self._loss), out_shardings=out)
      of = functools.partial(_adapter_gradient, self._loss, frozen.scale)
      return functools.partial(jax.jit(of, out_shardings=out), frozen.base)

    return self._program("gradient", params, make)

  def _add(self, params: Params) -> Any:
    """The compiled sum of two gradients."""
    add = functools.partial(jax.tree.map, jnp.add)
    make = functools.partial(jax.jit, add, donate_argnums=0)
    return self._program("add", params, lambda shardings: make(out_shardings=shardings))

  def _apply(self, state: TrainState) -> Any:
    """The compiled update of a state by a gradient."""
    make = functools.partial(jax.jit, functools.partial(_apply, self._optimizer), donate_argnums=0)
    return self._program("apply", state, lambda shardings: make(out_shardings=(shardings, None)))

  def _shardings(self, opt_state: optax.OptState, params: Params) -> Any:
    return _like_params(self._optimizer, opt_state, params, _everywhere(params))

  def network(self, params: Params) -> Params:
    """The whole network of a state's parameters; nothing is copied."""
    return (
      params if self.frozen is None else lora.adapt(self.frozen.base, params, self.frozen.scale)
    )

  def gradient(
    self, params: Params, batches: Iterable[Any]
  ) -> tuple[Params | None, jax.Array, dict]:
    """(gradient, loss, metrics) of the micro-batches of a batch; no gradient where it has none."""
    grads, loss, metrics = None, jnp.zeros(()), {}
    gradient, whole = self._gradient(params), ()
    if self._router is not None:
      batches = list(batches)
      whole = (self._router.whole(self.network(params), batches),) if batches else ()
    for batch in batches:
      more, share, part = gradient(params, batch, *whole)
      grads = more if grads is None else self._add(params)(grads, more)
      loss, metrics = loss + share, merge(metrics, part)
    return grads, loss, metrics

  def update(self, state: TrainState, batches: Iterable[Any]) -> tuple[TrainState, dict]:
    """One update from the micro-batches of one global batch."""
    grads, loss, metrics = self.gradient(state.params, batches)
    if grads is None:
      grads = jax.tree.map(jnp.zeros_like, state.params)
    rate = self._schedule(state.updates)
    state, norm = self._apply(state)(state, grads)
    if self._router is not None and LOAD in metrics:
      load: Any = metrics.pop(LOAD)
      metrics |= load_metrics(load)
      if self._router.bias_rate:
        moved = correct_choice(state.params, load, self._router.bias_rate)
        state = state._replace(params=moved)
    return state, metrics | {"loss": loss, "grad_norm": norm, "lr": rate}


def _gradient(loss, params, *batch):
  (share, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, *batch)
  # Shares of micro-batches add up in float32, whatever the parameters are.
  return jax.tree.map(lambda g: g.astype(jnp.float32), grads), share, metrics


def _adapter_gradient(loss, scale, base, params, *batch):
  def joined(params, *batch):
    return loss(lora.adapt(base, params, scale), *batch)

  return _gradient(joined, params, *batch)


def _apply(optimizer, state: TrainState, grads):
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  params: Any = optax.apply_updates(state.params, updates)
  return TrainState(params, opt_state, state.updates + 1), optax.tree.norm(grads)


def sharded_shape(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
  """An array's shape and dtype, placed."""
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _everywhere(params: Params) -> NamedSharding:
  """A copy on each device of the mesh that the parameters are on."""
  mesh = jax.tree.leaves(params)[0].sharding.mesh
  return NamedSharding(mesh, jax.sharding.PartitionSpec())


def _fitted(leaf: Any, param: Any) -> NamedSharding:
  """The parameter's sharding, along the axes of the leaf that it divides; a row's scale has one
  of size 1."""
  sharding = param.sharding
  if leaf.shape == param.shape:
    return sharding
  spec = (*sharding.spec, *(None,) * (param.ndim - len(sharding.spec)))
  kept = (a if n == m else None for a, n, m in zip(spec, leaf.shape, param.shape, strict=True))
  return NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*kept))


def _like_params(optimizer, opt_state: Any, params: Params, everywhere: NamedSharding) -> Any:
  """Shardings of an optimiser state: moments like their parameter, the rest copied."""
  return optax.tree_map_params(
    optimizer,
    _fitted,
    opt_state,
    params,
    transform_non_params=lambda _: everywhere,
  )
