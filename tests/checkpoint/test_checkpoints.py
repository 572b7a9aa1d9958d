"""Checkpoints: bitwise round trips, other meshes, asynchronous saves, other models."""

import contextlib
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints, check_model
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.networks import Layout, Trainer
from ptjax.train.optimizer import OptimizerConfig

AXES = {"table": ("vocab", "embed"), "norm": {"scale": ("embed",)}}


def layout_of(devices: int, **sizes: int) -> Layout:
  return Layout(make_mesh(MeshConfig(**sizes), jax.devices()[:devices]), Rules())


def quadratic(params, batch):
  """A loss whose gradient is easy: half the squared distance to the batch, everywhere."""
  parts = jax.tree.map(lambda p: 0.5 * jnp.sum((p - batch) ** 2), params)
  return sum(jax.tree.leaves(parts)), {}


@pytest.fixture(scope="module")
def trainer() -> Trainer:
  return Trainer(quadratic, OptimizerConfig(learning_rate=0.1), 10)


def trained(trainer: Trainer, layout: Layout, *, rows: int = 16, width: int = 8):
  """A state with moments, after two updates."""
  rng = np.random.default_rng(0)
  params = {
    "table": rng.normal(size=(rows, width)).astype(np.float32),
    "norm": {"scale": rng.normal(size=width).astype(np.float32)},
  }
  state = trainer.init(layout.place(params, AXES))
  for target in (0.5, -0.25):
    state, _ = trainer.update(state, [jnp.float32(target)])
  return state


def host(tree):
  return jax.tree.map(lambda x: np.array(x, copy=True), tree)


def assert_bitwise(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for have, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    assert have.dtype == want.dtype
    assert np.asarray(have).tobytes() == np.asarray(want).tobytes()


@pytest.fixture
def checkpoints(tmp_path):
  made = Checkpoints(tmp_path, CheckpointConfig(keep=2))
  yield made
  made.close()


def test_round_trip_is_bitwise(checkpoints, trainer):
  layout = layout_of(8, data=2, fsdp=2, tensor=2)
  state = trained(trainer, layout)
  meta = {"mixture": {"code": 3, "arithmetic": 4}, "jax": jax.__version__}
  checkpoints.save(7, {"policy": state}, meta)
  checkpoints.wait()
  assert checkpoints.latest() == 7
  assert checkpoints.meta(7) == meta
  restored = checkpoints.restore(7, {"policy": trained(trainer, layout)})["policy"]
  assert_bitwise(restored, state)
  assert int(restored.updates) == 2
  # Moments live where their parameters live.
  shardings = [x.sharding for x in jax.tree.leaves(restored)]
  assert shardings == [x.sharding for x in jax.tree.leaves(state)]


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"data": 8, "fsdp": 1}])
def test_restores_onto_another_mesh(checkpoints, trainer, sizes):
  state = trained(trainer, layout_of(8, data=2, fsdp=2, tensor=2))
  checkpoints.save(1, {"policy": state}, {})
  checkpoints.wait()
  like = trained(trainer, layout_of(8, **sizes))
  restored = checkpoints.restore(1, {"policy": like})["policy"]
  assert_bitwise(restored, state)
  assert restored.params["table"].sharding == like.params["table"].sharding
  # And the next update there is that of the state here.
  here, _ = trainer.update(state, [jnp.float32(1.0)])
  there, _ = trainer.update(restored, [jnp.float32(1.0)])
  np.testing.assert_allclose(there.params["table"], here.params["table"], rtol=0, atol=1e-6)


def test_a_donating_update_does_not_reach_a_save_under_way(checkpoints, trainer):
  state = trained(trainer, layout_of(1), rows=4096, width=512)  # 8 MiB, and the moments
  before = host(state)
  checkpoints.save(1, {"policy": state}, {})
  for _ in range(3):
    state, _ = trainer.update(state, [jnp.float32(9.0)])
  assert not np.array_equal(state.params["table"], before.params["table"])
  checkpoints.wait()
  assert_bitwise(host(checkpoints.restore(1, {"policy": state})["policy"]), before)


def test_a_record_that_changes_after_the_save_is_saved_as_it_was(checkpoints, trainer):
  """The run goes on drawing tasks while the checkpoint is being written."""
  state = trained(trainer, layout_of(1), rows=4096, width=512)
  for step in (1, 2, 3, 4):  # the writer may be quicker than this thread, but not every time
    drawn = {"arithmetic": step}
    checkpoints.save(step, {"policy": state}, {"mixture": drawn})
    drawn["arithmetic"] = 20
    checkpoints.wait()
    assert checkpoints.meta(step) == {"mixture": {"arithmetic": step}}


def test_keeps_the_newest(checkpoints, trainer):
  state = trained(trainer, layout_of(1))
  for step in (2, 4, 6, 8):
    checkpoints.save(step, {"policy": state}, {"step": step})
  checkpoints.wait()
  names = sorted(p.name for p in checkpoints.directory.iterdir())
  assert names == ["6", "8"]
  assert checkpoints.meta(6) == {"step": 6}


def test_an_unfinished_checkpoint_is_not_seen(tmp_path, trainer):
  config = CheckpointConfig()
  first = Checkpoints(tmp_path, config)
  first.save(2, {"policy": trained(trainer, layout_of(1))}, {})
  first.close()
  torn = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
  torn.mkdir()
  (torn / "garbage").write_text("half")
  second = Checkpoints(tmp_path, config)
  assert second.latest() == 2
  second.close()


def test_a_record_that_is_no_json_fails_before_the_save(checkpoints, trainer):
  with pytest.raises(ValueError, match="not JSON compliant"):
    checkpoints.save(1, {"policy": trained(trainer, layout_of(1))}, {"loss": float("nan")})
  assert checkpoints.latest() is None


def test_another_model_is_refused():
  saved, wanted = {"d_model": 64, "start": "aaa"}, {"d_model": 96, "start": "aaa", "remat": "dots"}
  with pytest.raises(ValueError) as refusal:
    check_model(saved, wanted, pathlib.Path("run/checkpoints/4"))
  message = str(refusal.value)
  assert "run/checkpoints/4" in message
  assert "d_model: 64 there, 96 here" in message
  assert "remat" in message
  assert "start" not in message
  assert "\n" not in message
  check_model(saved, json.loads(json.dumps(saved)), pathlib.Path("run/checkpoints/4"))


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}])
def test_config_is_checked(wrong):
  with pytest.raises(ValueError, match="must be >= 1"):
    CheckpointConfig(**wrong)


def test_a_part_is_restored_to_host_memory(trainer, tmp_path):
  """The parameters without the moments, by a process that has no mesh."""
  state = trained(trainer, layout_of(8, fsdp=4, tensor=2))
  with contextlib.closing(Checkpoints(tmp_path, CheckpointConfig())) as saving:
    saving.save(1, {"policy": state}, {})
  like = host(state.params)
  with contextlib.closing(Checkpoints(tmp_path, CheckpointConfig())) as reading:
    part = reading.restore_part(1, {"policy": {"params": like}})
  assert_bitwise(part, {"policy": {"params": like}})
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(part))


def test_chosen_checkpoints_are_preserved(tmp_path):
  checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep=1))
  state = {"x": jnp.zeros(2)}
  for step in range(1, 5):
    checkpoints.preserve(2)
    checkpoints.save(step, state, {})
    checkpoints.wait()
  assert [step for step in range(1, 5) if checkpoints.has(step)] == [2, 4]
  checkpoints.preserve()
  checkpoints.save(5, state, {})
  checkpoints.wait()
  assert [step for step in range(1, 6) if checkpoints.has(step)] == [5]
  checkpoints.close()
