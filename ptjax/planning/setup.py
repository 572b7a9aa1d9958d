"""An experiment on devices that need not exist: its long-lived arrays as shapes and shardings."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.models.lora import LoraConfig, adapter_axes, init_adapters
from ptjax.models.matrices import is_matrix
from ptjax.models.quantize import Kind, quantize_blocks, quantized_axes
from ptjax.rollout import decode
from ptjax.rollout.cache import CachePlacement
from ptjax.rollout.weights import decode_config, turned
from ptjax.sharding.mesh import make_mesh, on_cpu
from ptjax.train.batch import Batch, policy_batches, value_batches
from ptjax.train.experiment import CriticConfig, Experiment
from ptjax.train.loading import check_rows, computed_on
from ptjax.train.networks import (
  Layout,
  Trainer,
  TrainState,
  critic_axes,
  critic_params,
)
from ptjax.train.objectives import PolicyBatch, ValueBatch
from ptjax.train.programs import Critic, build_critic, policy_trainer


@dataclasses.dataclass(frozen=True)
class Setup:
  """An experiment on a mesh, without weights.

  Attributes:
    experiment: the configuration.
    model, decode_model: the policy as these devices compute it, in training and decoding.
    mesh, layout: the devices, and where the policy lives.
    start: the starting weights; None where the policy takes their place.
    reference: what the KL is measured against: `start` itself, or a copy of it in 8 bits.
    trainer, policy: trains the policy; its state.
    network: the policy whole: its parameters, or adapters beside their base.
    critic, critic_state: its trainer, layout and model; its state. None without one.
    head, layers: the engine's own copies of weights.
    cache: of the engine.
  """

  experiment: Experiment
  model: DecoderConfig
  decode_model: DecoderConfig
  mesh: Mesh
  layout: Layout
  start: decoder.Params | None
  reference: decoder.Params
  trainer: Trainer
  policy: TrainState
  network: decoder.Params
  critic: Critic | None
  critic_state: TrainState | None
  head: decoder.Params
  layers: tuple[decoder.Params, ...]
  cache: decode.Cache


def set_up(e: Experiment, shape: DecoderConfig, devices: list[Any]) -> Setup:
  """The experiment on these devices, its model having that shape.

  Raises:
    ValueError: shapes that do not divide over the mesh; routes to be replayed where there are none.
  """
  mesh = make_mesh(e.mesh, devices)
  layout = Layout(mesh, e.rules)
  check_rows(e.pack, layout)
  model = computed_on(shape, e.model, mesh, e.rules)
  if e.rl.router_replay and model.moe is None:
    raise ValueError("rl.router_replay: the model has no experts; set it to False")
  start = _start(e, model, layout)
  trainer = policy_trainer(e, model, layout, start)
  policy = trainer.abstract(
    start if e.model.lora is None else _adapters(e.model.lora, model, layout)
  )
  network = trainer.network(policy.params)
  critic = build_critic(e, model, mesh, start, at_start=_critic_at_start)
  critic_state = None if critic is None else _critic_state(critic, start)
  kind = e.rl.reference_weights
  reference = start if kind == "start" else _in_8_bits(start, kind, model, layout)
  spare = reference is not start and (e.critic is None or e.critic.lora is None)
  decodes = decode_config(model, on_cpu=on_cpu(mesh))
  head, layers = _cut(decodes, network, e.engine.quantized, layout)
  slots = e.engine.width(e.engine.num_slots)
  return Setup(
    experiment=e,
    model=model,
    decode_model=decodes,
    mesh=mesh,
    layout=layout,
    start=None if spare else start,
    reference=reference,
    trainer=trainer,
    policy=policy,
    network=network,
    critic=critic,
    critic_state=critic_state,
    head=head,
    layers=layers,
    cache=CachePlacement(mesh, e.rules).abstract(model, slots, e.engine.max_length),
  )


def _start(e: Experiment, model: DecoderConfig, layout: Layout) -> decoder.Params:
  """The weights as they are loaded: in their dtype, or quantised as a base of adapters."""
  dtype, lora = jnp.dtype(e.model.param_dtype), e.model.lora
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), decoder.param_shapes(model))
  start = layout.abstract(shapes, decoder.logical_axes(model))
  if lora is None or lora.base == "float32":
    return start
  return _in_8_bits(start, lora.base, model, layout)


def _in_8_bits(
  params: decoder.Params, kind: Kind, model: DecoderConfig, layout: Layout
) -> decoder.Params:
  shapes = jax.eval_shape(functools.partial(quantize_blocks, kind=kind), params)
  return layout.abstract(shapes, quantized_axes(model))


def _adapters(config: LoraConfig, model: DecoderConfig, layout: Layout) -> decoder.Params:
  shapes = jax.eval_shape(functools.partial(init_adapters, config, model))
  return layout.abstract(shapes, adapter_axes(config, model))


def _critic_at_start(
  config: CriticConfig, trunk: DecoderConfig, layout: Layout, start: decoder.Params
) -> decoder.Params:
  """What `critic_at_start` makes."""
  del config  # a reward model has the same shapes
  make = functools.partial(critic_params, num_layers=trunk.num_layers)
  axes = critic_axes(trunk)
  if any(is_matrix(x) for x in jax.tree.leaves(start, is_leaf=is_matrix)):
    axes["trunk"] = quantized_axes(trunk)
  return layout.abstract(jax.eval_shape(make, start), axes)


def _critic_state(critic: Critic, start: decoder.Params) -> TrainState:
  params = _critic_at_start(critic.config, critic.model, critic.layout, start)
  if critic.config.lora is not None:
    params["trunk"] = _adapters(critic.config.lora, critic.model, critic.layout)
  return critic.trainer.abstract(params)


def _cut(
  model: DecoderConfig, network: decoder.Params, kind: Kind | None, layout: Layout
) -> tuple[decoder.Params, tuple[decoder.Params, ...]]:
  """What `turned` makes: a layer keeps the sharding that its stack has, adapters merged."""
  head, layers = jax.eval_shape(functools.partial(turned, model, quantized=kind), network)
  axes = quantized_axes(model) if kind else decoder.logical_axes(model)
  inner = functools.partial(
    jax.tree.map, lambda names: names[1:], is_leaf=lambda x: isinstance(x, tuple)
  )
  stacks = [name for name, count in model.stacks.items() for _ in range(count)]
  placed = tuple(
    layout.abstract(layer, inner(axes[stack])) for stack, layer in zip(stacks, layers, strict=True)
  )
  return layout.abstract(head, {name: axes[name] for name in head}), placed


def policy_batch(setup: Setup) -> PolicyBatch:
  """A micro-batch of the policy as `train` makes it."""
  e = setup.experiment
  batch = policy_batches(_one_episode(setup), e.rl, e.pack, e.policy.max_new_tokens)[0]
  return setup.layout.abstract_rows(batch)


def value_batch(setup: Setup, layout: Layout) -> ValueBatch:
  """A micro-batch of the critic as `train` makes it."""
  e = setup.experiment
  return layout.abstract_rows(
    value_batches(_one_episode(setup), e.rl, e.pack, e.policy.max_new_tokens)[0]
  )


def _one_episode(setup: Setup) -> Batch:
  """The smallest batch: packing pads it to a micro-batch, whatever it holds."""
  e, model = setup.experiment, setup.model
  routes = None
  if e.rl.router_replay:
    routes = np.zeros((2, *decode.routes_shape(model)), decode.route_dtype(model))
  trajectory = Trajectory(
    tokens=np.zeros(2, np.int32),
    action_mask=np.asarray([False, True]),
    behavior_logprobs=np.zeros(2, np.float32),
    policy_versions=np.asarray([-1, 0], np.int32),
    turn_starts=(0,),
    domain=e.domains[0].name,
    group=0,
    seed=0,
    rewards={"": 1.0},
    outcome=Outcome.SCORED,
    finish_reason=FinishReason.STOP,
    routes=routes,
  )
  value, rl = [np.ones(1, np.float32)], e.rl
  needs_old = not rl.single_update or rl.objective.old_policy == "sampler"
  return Batch(
    [trajectory],
    advantages=value,
    old_logprobs=value if needs_old else None,
    reference_logprobs=value if rl.objective.kl_in_loss else None,
    old_values=value if e.critic is not None else None,
    returns=value if e.critic is not None else None,
    domain_shares={d.name: d.weight for d in e.domains},
    entropy_coef=None if rl.entropy is None else rl.objective.entropy_coef,
  )
