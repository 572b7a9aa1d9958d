"""An experiment on devices that need not exist: its long-lived arrays as shapes and shardings."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.rollout import decode
from ptjax.rollout.cache import CachePlacement
from ptjax.rollout.weights import decode_config, turned
from ptjax.sharding.mesh import make_mesh, on_cpu
from ptjax.train.batch import Batch, policy_batches, value_batches
from ptjax.train.experiment import Experiment
from ptjax.train.loading import check_rows, computed_on
from ptjax.train.networks import (
  Layout,
  Trainer,
  TrainState,
  critic_axes,
  critic_params,
  sharded_shape,
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
    start: the starting weights, which are also the reference.
    trainer, policy: trains the policy; its state.
    critic, critic_state: its trainer, layout and model; its state. None without one.
    head, layers: the engine's own copies of weights.
    cache: of the engine.
  """

  experiment: Experiment
  model: DecoderConfig
  decode_model: DecoderConfig
  mesh: Mesh
  layout: Layout
  start: decoder.Params
  trainer: Trainer
  policy: TrainState
  critic: Critic | None
  critic_state: TrainState | None
  head: decoder.Params
  layers: tuple[decoder.Params, ...]
  cache: decode.Cache


def set_up(e: Experiment, shape: DecoderConfig, devices: list[Any]) -> Setup:
  """The experiment on these devices, its model having that shape.

  Raises:
    ValueError: shapes that do not divide over the mesh; adapters, quantised weights, training or
      replay of routers, which a plan does not know yet.
  """
  _check_planned(e)
  mesh = make_mesh(e.mesh, devices)
  layout = Layout(mesh, e.rules)
  check_rows(e.pack, layout)
  model = computed_on(shape, e.model, mesh, e.rules)
  shapes = jax.eval_shape(functools.partial(decoder.init_params, model), jax.random.key(0))
  start = layout.abstract(shapes, decoder.logical_axes(model))
  trainer = policy_trainer(e, model, layout, start)
  critic, critic_state = build_critic(e, model, mesh, start), None
  if critic is not None:
    make = functools.partial(critic_params, num_layers=critic.model.num_layers)
    params = critic.layout.abstract(jax.eval_shape(make, start), critic_axes(critic.model))
    critic_state = critic.trainer.abstract(params)
  decodes = decode_config(model, on_cpu=on_cpu(mesh))
  head, layers = _cut(decodes, start)
  slots = e.engine.width(e.engine.num_slots)
  cache = CachePlacement(mesh, e.rules).abstract(model, slots, e.engine.max_length)
  return Setup(
    experiment=e,
    model=model,
    decode_model=decodes,
    mesh=mesh,
    layout=layout,
    start=start,
    trainer=trainer,
    policy=trainer.abstract(start),
    critic=critic,
    critic_state=critic_state,
    head=head,
    layers=layers,
    cache=cache,
  )


def _check_planned(e: Experiment) -> None:
  """Refuses what a plan would count wrongly."""
  for name, is_set in (
    ("model.lora", e.model.lora is not None),
    ("model.router", e.model.router is not None),
    ("critic.lora", e.critic is not None and e.critic.lora is not None),
    ("engine.weights", e.engine.weights != "trainer"),
    ("rl.reference_weights", e.rl.reference_weights != "start"),
    ("rl.router_replay", e.rl.router_replay),
  ):
    if is_set:
      raise ValueError(f"{name}: a plan does not know it yet; plan the run without it")


def _cut(model: DecoderConfig, start: decoder.Params) -> tuple[decoder.Params, tuple]:
  """What `turned` makes: a slice of a stack keeps the sharding of the other axes."""
  head, layers = jax.eval_shape(functools.partial(turned, model), start)
  stacks = [name for name, count in model.stacks.items() for _ in range(count)]

  def one(x, stacked):
    spec = PartitionSpec(*stacked.sharding.spec[1:])
    return sharded_shape(x, NamedSharding(stacked.sharding.mesh, spec))

  placed = tuple(
    jax.tree.map(one, layer, start[stack]) for stack, layer in zip(stacks, layers, strict=True)
  )
  like = {name: start[name] for name in head}
  return jax.tree.map(lambda x, y: sharded_shape(x, y.sharding), head, like), placed


def policy_batch(setup: Setup) -> PolicyBatch:
  """A micro-batch of the policy as `train` makes it."""
  e = setup.experiment
  batch = policy_batches(_one_episode(e), e.rl, e.pack, e.policy.max_new_tokens)[0]
  return setup.layout.abstract_rows(batch)


def value_batch(setup: Setup, layout: Layout) -> ValueBatch:
  """A micro-batch of the critic as `train` makes it."""
  e = setup.experiment
  return layout.abstract_rows(
    value_batches(_one_episode(e), e.rl, e.pack, e.policy.max_new_tokens)[0]
  )


def _one_episode(e: Experiment) -> Batch:
  """The smallest batch: packing pads it to a micro-batch, whatever it holds."""
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
