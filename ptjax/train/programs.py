"""The compiled programs of a run: `train` runs them, `plan` compiles them ahead of time."""

import dataclasses
import functools

import jax
from jax.sharding import Mesh

from ptjax.models.config import DecoderConfig
from ptjax.train.experiment import CriticConfig, Experiment
from ptjax.train.forward import action_logprobs, action_values
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import critic_loss, policy_loss


@dataclasses.dataclass(frozen=True)
class Critic:
  """The critic's trainer, where it lives, and the shape of its trunk."""

  config: CriticConfig
  trainer: Trainer
  layout: Layout
  model: DecoderConfig


def policy_trainer(e: Experiment, model: DecoderConfig, layout: Layout) -> Trainer:
  """Trains the policy on the objective of the experiment."""
  loss = functools.partial(
    policy_loss,
    model=model,
    objective=e.rl.objective,
    sampling=e.policy.sampling,
    constrain=layout.constrain,
  )
  num_updates = e.rl.num_steps * e.rl.epochs * e.rl.minibatches
  return Trainer(loss, e.optimizer, num_updates)


def build_critic(e: Experiment, model: DecoderConfig, mesh: Mesh) -> Critic | None:
  """The live parts of the critic; None without one.

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
  trainer = Trainer(loss, e.critic.optimizer, num_updates)
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
