import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptjax.planning.compiler import read_refusal
from ptjax.planning.topology import CHIPS, parse_topology


@pytest.mark.parametrize("name", ["v9:2x2", "v5p", "v5e:2", "v5p:2x2", "v5e:0x2", "v5e:2x2@0"])
def test_an_unknown_slice_is_refused_with_the_known_ones(name):
  with pytest.raises(ValueError, match=rf"{name}.*v5e:2x2, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1"):
    parse_topology(name)


@pytest.mark.parametrize(
  ("name", "devices", "slices"),
  [("v5p:4x4x4", 64, 1), ("v5e:16x16@2", 512, 2), ("tpu7x:2x2x1", 8, 1), ("v4:2x2x1", 8, 1)],
)
def test_devices_of_a_slice(name, devices, slices):
  topology = parse_topology(name)
  assert (topology.num_devices, topology.slices) == (devices, slices)


@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)
@pytest.mark.parametrize("kind", CHIPS)
def test_the_table_has_the_memory_that_the_compiler_enforces(kind):
  """A program too large is refused with the limit."""
  devices = np.asarray(parse_topology(CHIPS[kind].example).devices()[:1])
  sharding = NamedSharding(Mesh(devices, ("x",)), PartitionSpec())
  large = jax.ShapeDtypeStruct((2**18, 2**18), jnp.bfloat16, sharding=sharding)
  with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as error:
    jax.jit(lambda x: jnp.sin(x) @ x).lower(large).compile()
  assert read_refusal(str(error.value)).limit == pytest.approx(CHIPS[kind].hbm, rel=1e-3)


@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)
def test_the_compiler_knows_every_kind_of_chip():
  for chip in CHIPS.values():
    topology = parse_topology(chip.example)
    assert len(topology.devices()) == topology.num_devices
