"""The compiled programs of a run: `train` runs them, `plan` compiles them ahead of time."""

import dataclasses
import functools

import jax
from jax.sharding import Mesh

from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.matrices import is_matrix
from ptjax.models.quantize import quantized_axes
from ptjax.rewards.reward_model import critic_start, load_reward_model
from ptjax.train import adapters
from ptjax.train.experiment import CriticConfig, Experiment
from ptjax.train.forward import action_logprobs, action_values
from ptjax.train.networks import Layout, Trainer, critic_axes, critic_params
from ptjax.train.objectives import critic_loss, policy_loss, routed_policy_loss
from ptjax.train.router import RouterTraining


@dataclasses.dataclass(frozen=True)
class Critic:
  """The critic's trainer, where it lives, and the shape of its trunk."""

  config: CriticConfig
  trainer: Trainer
  layout: Layout
  model: DecoderConfig


def policy_trainer(e: Experiment, model: DecoderConfig, layout: Layout, start: Params) -> Trainer:
  """Trains the policy on the objective of the experiment; `start` is the base of adapters."""
  common = {
    "model": model,
    "objective": e.rl.objective,
    "sampling": e.policy.sampling,
    "constrain": layout.constrain,
  }
  frozen, config = adapters.frozen(start, e.model.lora), e.model.router
  num_updates = e.rl.num_steps * e.rl.epochs * e.rl.minibatches
  if config is None:
    loss = functools.partial(policy_loss, **common)
    return Trainer(loss, e.optimizer, num_updates, frozen)
  router = RouterTraining.of(config, model, layout.constrain, adapters=frozen is not None)
  loss = functools.partial(routed_policy_loss, **common, router=config)
  return Trainer(loss, e.optimizer, num_updates, frozen, router)


def critic_at_start(
  config: CriticConfig, trunk: DecoderConfig, layout: Layout, start: Params
) -> Params:
  """A critic at update 0 on its mesh; it may share arrays with the policy's `start`."""
  if config.reward_model is None:
    params = critic_params(start, trunk.num_layers)
  else:
    params = critic_start(load_reward_model(config.reward_model), trunk)
  axes = critic_axes(trunk)
  if any(is_matrix(x) for x in jax.tree.leaves(params, is_leaf=is_matrix)):
    axes["trunk"] = quantized_axes(trunk)
  return layout.place(params, axes)


def build_critic(
  e: Experiment, model: DecoderConfig, mesh: Mesh, start: Params, at_start=critic_at_start
) -> Critic | None:
  """The live parts of the critic; None without one. With adapters, `start` is their base.

  Args:
    e, model, mesh: of the run.
    start: the policy at update 0.
    at_start: as `critic_at_start`: what makes the critic of it, or its shapes.

  Raises:
    ValueError: it has more layers than the policy that it starts from.
  """
  if e.critic is None:
    return None
  depth = e.critic.num_layers or model.num_layers
  if depth > model.num_layers:
    raise ValueError(
      f"critic.num_layers {depth} exceeds the {model.num_layers} layers of the policy that it "
      f"starts from"
    )
  # Without an output matrix: a scalar head takes its place.
  trunk = dataclasses.replace(model.first(depth), tie_embeddings=True)
  layout = Layout(mesh, e.critic.rules)
  loss = functools.partial(critic_loss, model=trunk, clip=e.critic.clip, constrain=layout.constrain)
  num_updates = e.rl.num_steps * e.rl.epochs * e.rl.minibatches
  frozen = None
  if e.critic.lora is not None:
    params = at_start(e.critic, trunk, layout, start)
    frozen = adapters.trunk_frozen(params, e.critic.lora)
  trainer = Trainer(loss, e.critic.optimizer, num_updates, frozen)
  return Critic(e.critic, trainer, layout, trunk)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def score_rows(model, sampling, chunk, layout: Layout, params, rows):
  """logp_BA of the actions of one micro-batch of rows."""
  constrain = layout.constrain
  return action_logprobs(model, params, rows, sampling, chunk=chunk, constrain=constrain)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_rows(model, layout: Layout, params, rows):
  """values_BA before the actions of one micro-batch of rows."""
  return action_values(model, params, rows, layout.constrain)
