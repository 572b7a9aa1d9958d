"""A small model trained on rows cut over 8 devices: every way to attend gives the same losses."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from mesh_cases import LLAMA, batch_of, parameters
from train_toys import SMOOTH

from ptjax.kernels.sparse import Pattern
from ptjax.models import decoder
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import PolicyObjective, policy_loss

SMALL = dataclasses.replace(LLAMA, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1)
UPDATES = 2
EVERYTHING = Pattern(window=24)  # as long as the rows


def losses(devices: int, **changes) -> list[float]:
  """Of some updates on the same rows."""
  model = dataclasses.replace(SMALL, **changes)
  mesh = make_mesh(MeshConfig(fsdp=1, context=devices), jax.devices()[:devices])
  layout = Layout(mesh, Rules(embed=("fsdp", "context")))
  loss = functools.partial(
    policy_loss,
    model=model,
    objective=PolicyObjective(loss="ppo", entropy_coef=0.01),
    sampling=SamplingConfig(),
    constrain=layout.constrain,
  )
  trainer = Trainer(loss, dataclasses.replace(SMOOTH, learning_rate=0.3), UPDATES)
  state = trainer.init(layout.place(parameters(SMALL), decoder.logical_axes(model)))
  batch, found = layout.place_rows(_rows()), []
  for _ in range(UPDATES):
    state, metrics = trainer.update(state, [batch])
    found.append(float(metrics["loss"]))
  return found


def _rows():
  return jax.tree.map(lambda x: x[:1], batch_of(SMALL))


@functools.cache
def whole() -> tuple[float, ...]:
  return tuple(losses(1))


@pytest.mark.parametrize(
  "changes",
  [
    {"context_attention": "ring", "ff_chunk": 2, "remat": "attention"},
    {"context_attention": "all_gather"},
    {"context_attention": "ring", "pattern": EVERYTHING},
  ],
  ids=["ring", "all_gather", "sparse"],
)
def test_cut_over_8_devices(changes):
  np.testing.assert_allclose(losses(8, **changes), whole(), rtol=1e-5)


def test_updates_move_the_loss():
  """By more than the ways differ."""
  assert abs(whole()[-1] - whole()[0]) > 1e-3 * abs(whole()[0])


def test_a_narrow_pattern_gives_another_loss():
  narrow = losses(1, pattern=Pattern(window=1))
  assert abs(narrow[0] - whole()[0]) > 1e-4 * abs(whole()[0])
