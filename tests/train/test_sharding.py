"""Sharded equals unsharded: loss, gradient and updated parameters, on 8 devices and on 1."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from train_toys import (
  KL_OBJECTIVE,
  SMOOTH,
  assert_trees_close,
  gradient,
  mesh_layout,
  policy_trainer,
  session_on,
  toy_experiment,
  toy_trajectories,
)

from ptjax.models import decoder
from ptjax.train.batch import Batch, policy_batches, value_batches
from ptjax.train.estimate import group_advantages
from ptjax.train.experiment import CriticConfig
from ptjax.train.networks import Trainer, critic_axes, critic_params
from ptjax.train.objectives import critic_loss

MESHES = {
  "data2_fsdp2_tensor2": {"data": 2, "fsdp": 2, "tensor": 2},
  "fsdp8": {"fsdp": 8},
  "fsdp2_context2_tensor2": {"fsdp": 2, "context": 2, "tensor": 2},
  "data2_context4": {"data": 2, "fsdp": 1, "context": 4},
}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def session(tiny_source, tmp_path_factory):
  e = toy_experiment(tiny_source)
  rl = dataclasses.replace(e.rl, objective=KL_OBJECTIVE, reference=True)
  with session_on(1, dataclasses.replace(e, rl=rl), tmp_path_factory.mktemp("run")) as session:
    yield session


@pytest.fixture(scope="module")
def batch(session):
  """Several rows of every kind: ratios on both sides of the clip, a KL, returns to predict."""
  trajectories = toy_trajectories(groups=32)
  rng = np.random.default_rng(1)
  now = session.logprobs(session.start, trajectories)
  moved = [[x + rng.normal(0, 0.3, len(x)).astype(np.float32) for x in now] for _ in range(2)]
  values = [rng.normal(0, 0.3, len(x)).astype(np.float32) for x in now]
  returns = [v + rng.normal(0, 1, len(v)).astype(np.float32) for v in values]
  advantages = group_advantages(trajectories, "grpo")
  return Batch(trajectories, advantages, *moved, values, returns)


def one_update(trainer, layout, params, axes, batches):
  """(loss, gradient, updated parameters) of the real trainer."""
  state = trainer.init(layout.place(jax.tree.map(np.asarray, params), axes))
  state, metrics = trainer.update(state, map(layout.place_rows, batches))
  return float(metrics["loss"]), gradient(state), state.params


def policy_update(session, batch, layout, merge_rows):
  e = session.experiment
  batches = policy_batches(batch, e.rl, e.pack, e.policy.max_new_tokens)
  assert len(batches) > 1, "the accumulation over micro-batches is part of the test"
  trainer = policy_trainer(session, layout, merge_rows=merge_rows)
  axes = decoder.logical_axes(session.model)
  return one_update(trainer, layout, session.start, axes, batches)


@pytest.fixture(scope="module")
def unsharded_policy(session, batch):
  return policy_update(session, batch, mesh_layout(1), merge_rows=True)


def assert_same_update(actual, expected):
  np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=TOLERANCE)
  assert np.linalg.norm(jax.tree.leaves(jax.tree.map(np.linalg.norm, expected[1]))) > 1e-2
  assert_trees_close(actual[1], expected[1], TOLERANCE)
  assert_trees_close(actual[2], expected[2], TOLERANCE)


@pytest.mark.parametrize(
  ("mesh", "merge_rows"),
  [
    ("data2_fsdp2_tensor2", False),
    ("data2_fsdp2_tensor2", True),
    ("fsdp8", True),
    ("fsdp2_context2_tensor2", False),
    ("data2_context4", False),
  ],
)
def test_policy_update(session, batch, unsharded_policy, mesh, merge_rows):
  sharded = policy_update(session, batch, mesh_layout(8, **MESHES[mesh]), merge_rows)
  assert_same_update(sharded, unsharded_policy)
  if mesh != "data2_context4":  # which copies parameters
    assert not sharded[2]["embed"]["table"].sharding.is_fully_replicated


def critic_update(session, batch, layout):
  e = session.experiment
  # A trunk has no output matrix, as if the embeddings were tied.
  whole = layout.mesh.shape["context"] == 1
  model = dataclasses.replace(session.model, num_layers=1, tie_embeddings=True, merge_rows=whole)
  batches = value_batches(batch, e.rl, e.pack, e.policy.max_new_tokens)
  loss = functools.partial(
    critic_loss, model=model, clip=CriticConfig().clip, constrain=layout.constrain
  )
  params = critic_params(session.start, num_layers=1)
  # A head of zeros would stop the gradient of the trunk.
  params["head"]["w"] = np.random.default_rng(2).normal(0, 0.2, model.d_model).astype(np.float32)
  trainer = Trainer(loss, SMOOTH, 1)
  return one_update(trainer, layout, params, critic_axes(model), batches)


@pytest.fixture(scope="module")
def unsharded_critic(session, batch):
  return critic_update(session, batch, mesh_layout(1))


@pytest.mark.parametrize("mesh", MESHES)
def test_critic_update(session, batch, unsharded_critic, mesh):
  sharded = critic_update(session, batch, mesh_layout(8, **MESHES[mesh]))
  assert_same_update(sharded, unsharded_critic)
