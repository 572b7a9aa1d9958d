"""Optimisers by configuration, on a small regression: they converge as AdamW in float32 does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_toys import mesh_layout

from ptjax.models.decoder import param_shapes
from ptjax.models.presets import PRESETS, preset
from ptjax.train.networks import Trainer
from ptjax.train.optimizer import OptimizerConfig, decays
from ptjax.train.rounding import stochastic

INPUTS, OUTPUTS, STEPS = 64, 32, 150
AXES = {"w": ("embed", "ff"), "bias": {"scale": ("ff",)}}
BASE = OptimizerConfig(learning_rate=0.1, schedule="linear", max_grad_norm=1e9)
CONFIGS = {
  "adamw": BASE,
  "adamw8": dataclasses.replace(BASE, kind="adamw8"),
  "lion": dataclasses.replace(BASE, kind="lion", learning_rate=0.05),
  "master": dataclasses.replace(BASE, narrow="master"),
  "stochastic": dataclasses.replace(BASE, narrow="stochastic"),
  "master8": dataclasses.replace(BASE, kind="adamw8", narrow="master"),
}
# Of the optimiser's state, for a parameter of a matrix.
BYTES = {"adamw": 8, "adamw8": 2, "lion": 4, "master": 12, "stochastic": 8, "master8": 6}


def problem():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(256, INPUTS)).astype(np.float32)
  w = rng.normal(size=(INPUTS, OUTPUTS)).astype(np.float32)
  return x, x @ w + 0.5


def loss(params, batch):
  x, y = batch
  out = x @ params["w"].astype(jnp.float32) + params["bias"]["scale"].astype(jnp.float32)
  return jnp.mean((out - y) ** 2), {}


def start(config, layout):
  dtype = jnp.float32 if config.narrow == "none" else jnp.bfloat16
  params = {"w": jnp.zeros((INPUTS, OUTPUTS), dtype), "bias": {"scale": jnp.zeros(OUTPUTS, dtype)}}
  trainer = Trainer(loss, config, STEPS)
  return trainer, trainer.init(layout.place(params, AXES))


@pytest.mark.parametrize("name", CONFIGS)
def test_convergence_and_memory(name):
  trainer, state = start(CONFIGS[name], mesh_layout(1))
  first, batch = None, problem()
  for _ in range(STEPS):
    state, metrics = trainer.update(state, [batch])
    first = float(metrics["loss"]) if first is None else first
  # A bfloat16 of 1 is off by 2e-3; Lion's steps are signs, which swing about the minimum.
  limit = 1e-5 if state.params["w"].dtype == jnp.float32 else 1e-4
  assert float(metrics["loss"]) < (1e-2 if name == "lion" else limit) * first
  held = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  scales = sum(x.nbytes for x in held if x.shape[-1] == 1)
  matrix = sum(x.nbytes for x in held if x.shape == (INPUTS, OUTPUTS))
  assert matrix == BYTES[name] * INPUTS * OUTPUTS
  assert scales == (2 * 4 * (INPUTS + 1) if "8" in name else 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_state_lies_where_its_parameter_does(name):
  layout = mesh_layout(8, fsdp=4, tensor=2)
  trainer, state = start(CONFIGS[name], layout)
  state, _ = trainer.update(state, [problem()])
  matrices = [x for x in jax.tree.leaves(state.opt_state) if x.ndim == 2]
  assert matrices
  for x in matrices:
    assert x.sharding.shard_shape(x.shape) == (INPUTS // 4, max(x.shape[1] // 2, 1))


def test_plain_rounding_of_narrow_parameters_is_refused():
  trainer, layout = Trainer(loss, BASE, STEPS), mesh_layout(1)
  params = {"w": jnp.zeros((2, 2), jnp.bfloat16), "bias": {"scale": jnp.zeros(2)}}
  with pytest.raises(ValueError, match=r"bfloat16 with optimizer\.narrow 'none'.*'master'"):
    trainer.init(layout.place(params, AXES))


@pytest.mark.parametrize("name", ["master", "stochastic"])
def test_updates_below_half_a_step_are_not_lost(name):
  """A hundred steps of 1e-4 from 1, where bfloat16 has steps of 2^-8 below: nearest stays at 1."""
  config = OptimizerConfig(learning_rate=1e-4, narrow=CONFIGS[name].narrow, max_grad_norm=1e9)

  def down(params, batch):
    del batch
    return sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(params)), {}

  trainer, layout = Trainer(down, config, 100), mesh_layout(1)
  params = {"w": jnp.ones((64, 64), jnp.bfloat16), "bias": {"scale": jnp.ones(64, jnp.bfloat16)}}
  state = trainer.init(layout.place(params, AXES))
  for _ in range(100):
    state, _ = trainer.update(state, [np.zeros(1)])
  mean = float(np.mean(np.asarray(state.params["w"], np.float32)))
  assert abs(mean - 0.99) < (2**-8 if name == "master" else 5e-4)
  assert jnp.bfloat16(1.0) - jnp.bfloat16(1e-4) == 1.0


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2**-7), ("float8_e4m3fn", 2**-3)])
def test_stochastic_rounding(dtype, step):
  x = jnp.full(20_000, 1 + 0.3 * step, jnp.float32)
  rounded = np.asarray(stochastic(x, dtype, jax.random.key(0)), np.float32)
  assert set(np.unique(rounded)) == {1, 1 + step}
  assert abs(rounded.mean() - x[0]) < 0.02 * step  # six standard errors
  exact = jnp.asarray([0.0, -1.5, 448.0])
  np.testing.assert_array_equal(stochastic(exact, dtype, jax.random.key(1)), exact)


@pytest.mark.parametrize("name", PRESETS)
def test_weight_decay_spares_vectors_however_they_are_stacked(name):
  """A norm or a bias of each layer has two dimensions or more, and is a vector all the same."""
  for path, decayed in jax.tree_util.tree_leaves_with_path(decays(param_shapes(preset(name)))):
    leaf = jax.tree_util.keystr(path[-1:], simple=True)
    is_matrix = leaf.startswith(("w", "e_")) or leaf in ("table", "router")
    assert decayed is is_matrix, jax.tree_util.keystr(path)
