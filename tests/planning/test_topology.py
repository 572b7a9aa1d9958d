import importlib.util

import pytest

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
def test_the_compiler_knows_every_kind_of_chip():
  for chip in CHIPS.values():
    topology = parse_topology(chip.example)
    assert len(topology.devices()) == topology.num_devices
