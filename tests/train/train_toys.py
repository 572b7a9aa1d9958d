"""A tiny experiment, sessions on a chosen number of devices, and synthetic trajectories."""

import contextlib
import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.domains.catalog import DOMAINS
from ptjax.domains.domain import Domain
from ptjax.envs.environment import Task
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.decoder import Params
from ptjax.rewards import tree
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train import session as sessions
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig
from ptjax.train.networks import Layout, Trainer, TrainState
from ptjax.train.objectives import PolicyObjective, policy_loss
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.session import Session, open_session

# A large eps makes the first step of Adam smooth in the gradient: with the usual one it is
# a sign, and the last bit of a gradient near 0 decides about a whole learning rate.
SMOOTH = OptimizerConfig(learning_rate=1e-3, eps=1e-2, max_grad_norm=1e9)
KL_OBJECTIVE = PolicyObjective(loss="ppo", kl_coef=0.1, entropy_coef=0.01, logit_chunk=16)


def toy_experiment(source: Path, **changes) -> Experiment:
  """Sixteen short episodes a step."""
  base = Experiment(
    domains=(DomainConfig("arithmetic"),),
    model=ModelConfig(str(source)),
    policy=PolicyConfig(max_new_tokens=8),
    engine=EngineConfig(num_slots=16, max_length=64, decode_chunk=4),
    pack=PackConfig(length=64, actions=32, rows=8),
    rl=RLConfig(num_steps=4, prompts_per_step=2, group_size=8, deterministic=True),
    optimizer=SMOOTH,
    eval=EvalConfig(tasks_per_domain=4),
  )
  return dataclasses.replace(base, **changes)


def critic_experiment(source: Path, **changes) -> Experiment:
  """The same with PPO: a critic of one layer, GAE."""
  critic = CriticConfig(num_layers=1, optimizer=dataclasses.replace(SMOOTH, learning_rate=1e-2))
  rl = RLConfig(num_steps=4, prompts_per_step=2, group_size=8, advantages="gae")
  return toy_experiment(source, **{"critic": critic, "rl": rl} | changes)


def toy_domain(byte: str = "7") -> Domain:
  """Reward: the share of one character in the answer."""

  def share(task, response, services) -> float:
    del task, services
    return response.count(byte) / max(len(response), 1)

  leaf = tree.Leaf("share", share)
  return Domain(
    name="toy",
    family="toy",
    license="Apache-2.0",
    source="this file",
    make_task=lambda seed, split: Task(
      "toy", seed, split, ({"role": "user", "content": f"{seed % 100}"},), {}
    ),
    rewards=tree.RewardTree(tree.Node("reward", (tree.Child(1.0, leaf),))),
    passed=lambda rewards: rewards["share"] == 1.0,
    oracle=lambda task: byte,
  )


@contextlib.contextmanager
def session_on(devices: int, experiment: Experiment, workdir: Path):
  """A real session whose mesh has the first few devices; knows the domain `toy`."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sessions, "make_mesh", lambda config: make_mesh(config, jax.devices()[:devices]))
    patch.setitem(DOMAINS, "toy", toy_domain)
    with open_session(experiment, workdir) as session:
      yield session


def policy_trainer(session: Session, layout: Layout, *, merge_rows: bool) -> Trainer:
  """The session's policy trainer on another mesh."""
  e = session.experiment
  loss = functools.partial(
    policy_loss,
    model=dataclasses.replace(session.model, merge_rows=merge_rows),
    objective=e.rl.objective,
    sampling=e.policy.sampling,
    constrain=layout.constrain,
  )
  return Trainer(loss, e.optimizer, 1)


def mesh_layout(devices: int, **sizes: int) -> Layout:
  mesh = make_mesh(MeshConfig(**sizes), jax.devices()[:devices])
  return Layout(mesh, Rules())


def gradient(state: TrainState, config: OptimizerConfig = SMOOTH) -> Params:
  """The gradient of the first update, from Adam's first moment."""
  mu = optax.tree_utils.tree_get(state.opt_state, "mu")
  return jax.tree.map(lambda m: np.asarray(m) / (1 - config.b1), mu)


def assert_trees_close(actual, expected, atol: float) -> None:
  """Largest absolute difference of any leaf, which the message names."""
  paths, wanted = jax.tree_util.tree_flatten_with_path(expected)[0], jax.tree.leaves(actual)
  for (path, want), have in zip(paths, wanted, strict=True):
    name = jax.tree_util.keystr(path)
    np.testing.assert_allclose(np.asarray(have), np.asarray(want), 0, atol, err_msg=name)


def assert_trees_equal(actual, expected) -> None:
  """Bit for bit."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for have, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    assert np.asarray(have).tobytes() == np.asarray(want).tobytes()


def toy_trajectories(seed: int = 0, groups: int = 4, size: int = 3) -> list[Trajectory]:
  """Random episodes; completions of 1 to 7 tokens, rewards 0 or 1, one group all equal."""
  rng = np.random.default_rng(seed)
  trajectories = []
  for group in range(groups):
    prompt = rng.integers(0, 256, rng.integers(4, 12))
    for member in range(size):
      completion = rng.integers(0, 256, rng.integers(1, 8))
      reward = 1.0 if group == 0 else float(member == 0 or rng.integers(2))
      trajectories.append(toy_trajectory(prompt, completion, group, reward))
  return trajectories


def toy_trajectory(prompt, completion, group: int, reward: float) -> Trajectory:
  """One turn; the sampler reported log-prob -3 for every token."""
  actions = np.concatenate([np.zeros(len(prompt), bool), np.ones(len(completion), bool)])
  return Trajectory(
    tokens=np.concatenate([prompt, completion]).astype(np.int32),
    action_mask=actions,
    behavior_logprobs=np.where(actions, np.float32(-3), np.float32(0)),
    policy_versions=np.where(actions, 0, -1).astype(np.int32),
    turn_starts=(0, len(prompt)),
    domain="toy",
    group=group,
    seed=0,
    rewards={"": reward},
    outcome=Outcome.SCORED,
    finish_reason=FinishReason.STOP,
  )
