"""The mesh and the rules: sizes, collisions, and refusals that name the values."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.sharding.mesh import AXES, MeshConfig, make_mesh
from ptjax.sharding.rules import Constrainer, Rules, tree_shardings
from ptjax.train.networks import Layout

TINY = DecoderConfig(
  vocab_size=40, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
)


@pytest.fixture(scope="module")
def mesh():
  return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.mark.parametrize(
  ("config", "sizes"),
  [
    (MeshConfig(), (1, 1, 8, 1, 1, 1)),
    (MeshConfig(data=2, fsdp=2, tensor=2), (1, 2, 2, 1, 2, 1)),
    (MeshConfig(data=-1, fsdp=2), (1, 4, 2, 1, 1, 1)),
    (MeshConfig(replica=8, fsdp=-1), (8, 1, 1, 1, 1, 1)),
  ],
)
def test_mesh_sizes(config, sizes):
  made = make_mesh(config)
  assert made.axis_names == AXES
  assert made.devices.shape == sizes
  assert made.devices.ravel().tolist() == jax.devices()


def test_mesh_over_given_devices():
  made = make_mesh(MeshConfig(tensor=2), jax.devices()[:4])
  assert dict(made.shape) == dict.fromkeys(AXES, 1) | {"fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: MeshConfig(data=0), r"mesh sizes \[1, 0, -1, 1, 1, 1\] must be positive"),
    (lambda: MeshConfig(data=-2), r"mesh sizes \[1, -2, -1, 1, 1, 1\] must be positive"),
    (lambda: MeshConfig(data=-1), r"only one axis may be -1"),
    (lambda: make_mesh(MeshConfig(tensor=3)), r"8 devices are not divisible.*product 3"),
    (lambda: make_mesh(MeshConfig(fsdp=4)), r"has 4 places for 8 devices"),
    (lambda: make_mesh(MeshConfig(fsdp=16)), r"has 16 places for 8 devices"),
  ],
)
def test_mesh_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_specs():
  rules = Rules()
  assert rules.spec(("vocab", "embed")) == PartitionSpec(("tensor",), ("fsdp",))
  assert rules.spec(("batch", "length", None)) == PartitionSpec(
    ("replica", "data", "fsdp"), ("context",), None
  )
  assert rules.spec(("layers", "head")) == PartitionSpec(None, None)
  assert rules.spec(()) == PartitionSpec()
  assert Rules(ff=("tensor", "expert")).spec(("ff",)) == PartitionSpec(("tensor", "expert"))


@pytest.mark.parametrize(
  ("rules", "axes"),
  [
    (Rules(), ("vocab", "ff")),  # both on tensor
    (Rules(embed=("tensor",)), ("embed", "heads", "head")),
    (Rules(), ("batch", "embed")),  # fsdp in both
    (Rules(head=("expert", "expert")), ("head",)),
  ],
)
def test_a_mesh_axis_serves_one_dimension(rules, axes):
  with pytest.raises(ValueError, match="used twice") as error:
    rules.spec(axes)
  assert str(axes) in str(error.value)


def test_unknown_logical_axes_are_refused():
  with pytest.raises(ValueError, match="no sharding rule for the logical axis 'embde'"):
    Rules().spec(("embde",))


def test_unknown_mesh_axes_are_refused(mesh):
  for use in (
    lambda rules: rules.sharding(mesh, ("ff",), (48,)),
    lambda rules: Constrainer(rules, mesh)(np.zeros(48), ("ff",)),
  ):
    with pytest.raises(ValueError, match="tensr"):
      use(Rules(ff=("tensr",)))


def test_a_size_that_does_not_divide_is_refused(mesh):
  with pytest.raises(ValueError, match="not divisible") as error:
    Rules().sharding(mesh, ("vocab", "embed"), (41, 32))
  for part in ("'vocab'", "41", "(41, 32)", "2 devices", "tensor"):
    assert part in str(error.value)
  with pytest.raises(ValueError, match=r"of size 6 .* 4 devices"):
    Rules().sharding(mesh, ("batch",), (6,))


def test_dimensions_must_be_named(mesh):
  with pytest.raises(ValueError):
    Rules().sharding(mesh, ("embed",), (32, 32))


def test_parameters_on_the_mesh(mesh):
  shapes = jax.eval_shape(lambda key: decoder.init_params(TINY, key), jax.random.key(0))
  shardings = tree_shardings(Rules(), mesh, decoder.logical_axes(TINY), shapes)
  wq = shardings["layers"]["attn"]["wq"]
  assert wq.shard_shape((2, 32, 4, 8)) == (2, 16, 2, 8)
  assert shardings["embed"]["table"].shard_shape((40, 32)) == (20, 16)
  assert shardings["final_norm"]["scale"].shard_shape((32,)) == (16,)
  odd = dataclasses.replace(TINY, vocab_size=41)
  shapes = jax.eval_shape(lambda key: decoder.init_params(odd, key), jax.random.key(0))
  with pytest.raises(ValueError, match="'vocab' of size 41"):
    tree_shardings(Rules(), mesh, decoder.logical_axes(odd), shapes)


def test_rows_on_the_mesh(mesh):
  placed = Layout(mesh, Rules()).place_rows({"x": np.arange(24).reshape(8, 3)})["x"]
  assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(placed, np.arange(24).reshape(8, 3))


def test_constrained_activations(mesh):
  constrain = Constrainer(Rules(), mesh)
  made = jax.jit(lambda x: constrain(x + 1, ("batch", "length", None)))(np.zeros((8, 4, 2)))
  assert made.sharding.shard_shape(made.shape) == (2, 4, 2)
  np.testing.assert_array_equal(made, 1)


def test_sharded_forward_equals_unsharded(mesh):
  params = decoder.init_params(TINY, jax.random.key(0))
  layout = Layout(mesh, Rules())
  tokens_BT = np.random.default_rng(0).integers(40, size=(8, 6)).astype(np.int32)
  index_BT = np.broadcast_to(np.arange(6, dtype=np.int32), (8, 6))
  packed = decoder.Packed(tokens_BT, index_BT, np.ones_like(tokens_BT), np.zeros_like(tokens_BT))
  want = jax.jit(lambda p, x: decoder.bind(TINY, p)(x))(params, packed)
  got = jax.jit(lambda p, x: decoder.bind(TINY, p)(x, constrain=layout.constrain))(
    layout.place(params, decoder.logical_axes(TINY)), layout.place_rows(packed)
  )
  assert len(got.sharding.device_set) == 8
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
