"""TPU slices by name, and the data sheets of their chips."""

import dataclasses
import math
import os
import re
from typing import Any

import jax

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """One kind of TPU; figures are of a device, which is half a chip on v4 and tpu7x.

  Attributes:
    kind: as topology names spell it.
    hbm: bytes that a program can use, as the compiler enforces it.
    flops: peak bfloat16 operations a second.
    hbm_bandwidth: bytes a second.
    link_bandwidth: bytes a second over one inter-chip link, in one direction.
    dcn_bandwidth: bytes a second of this device's share of its host's network.
    dims: dimensions of the torus.
    devices: of a chip.
    example: a topology name.
  """

  kind: str
  hbm: float
  flops: float
  hbm_bandwidth: float
  link_bandwidth: float
  dcn_bandwidth: float
  dims: int
  devices: int
  example: str


# hbm: where libtpu begins to answer RESOURCE_EXHAUSTED (tests/planning compares them). The others
# are Google's data sheets (cloud.google.com/tpu/docs, system architecture), divided by the devices
# of a chip; dcn: 100 Gbit/s of a host of four chips (v5e, v6e: eight), 200 on v5p and tpu7x.
CHIPS = {
  chip.kind: chip
  for chip in (
    Chip("v4", 15.25 * GIB, 137.5e12, 614e9, 45e9, 1.56e9, 3, 2, "v4:2x2x1"),
    Chip("v5e", 15.75 * GIB, 197e12, 819e9, 45e9, 1.56e9, 2, 1, "v5e:2x2"),
    Chip("v5p", 95.74 * GIB, 459e12, 2765e9, 90e9, 6.25e9, 3, 1, "v5p:2x2x1"),
    Chip("v6e", 31.25 * GIB, 918e12, 1640e9, 90e9, 3.12e9, 2, 1, "v6e:2x2"),
    Chip("tpu7x", 94.75 * GIB, 1153.5e12, 3690e9, 90e9, 3.12e9, 3, 2, "tpu7x:2x2x1"),
  )
}


@dataclasses.dataclass(frozen=True)
class Topology:
  """One or several slices.

  Attributes:
    name: as the user wrote it, such as `v5p:4x4x4` or `v5e:16x16@2`.
    chip: what it is made of.
    shape: chips along each dimension of a slice.
    slices: how many, joined by the data-centre network.
  """

  name: str
  chip: Chip
  shape: tuple[int, ...]
  slices: int = 1

  @property
  def num_devices(self) -> int:
    return math.prod(self.shape) * self.chip.devices * self.slices

  def devices(self) -> list[Any]:
    """The devices that the TPU compiler knows for it; needs libtpu, and no TPU.

    Raises:
      ValueError: libtpu is not installed, or knows no such slice.
    """
    require_compiler()
    from jax.experimental import topologies

    shape = "x".join(map(str, self.shape))
    options = {"num_slices": self.slices} if self.slices > 1 else {}
    try:
      description = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{self.chip.kind}:{shape}", **options
      )
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
      first = str(error).splitlines()[0]
      raise ValueError(
        f"topology {self.name!r}: the TPU compiler has no such slice ({first}); {known()}"
      ) from error
    return list(description.devices)


def parse_topology(name: str) -> Topology:
  """Reads `v5p:4x4x4`, or `v5p:4x4x4@2` for two slices.

  Raises:
    ValueError: another form or an unknown chip; the message lists the known ones.
  """
  found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?:@(\d+))?", name)
  if not found or found[1] not in CHIPS:
    raise ValueError(f"topology {name!r} is unknown; {known()}")
  chip, shape = CHIPS[found[1]], tuple(map(int, found[2].split("x")))
  slices = int(found[3] or 1)
  if len(shape) != chip.dims or 0 in shape or not slices:
    raise ValueError(
      f"topology {name!r}: {chip.kind} slices have {chip.dims} dimensions; {known()}"
    )
  return Topology(name, chip, shape, slices)


def known() -> str:
  """The names that can be given, in words."""
  names = ", ".join(chip.example for chip in CHIPS.values())
  return f"use the chip and the shape of its slice: {names} and larger, @2 for two slices"


def require_compiler() -> None:
  """Sets what libtpu needs on a machine without a TPU.

  Raises:
    ValueError: libtpu is not installed.
  """
  try:
    import libtpu  # noqa: F401  JAX finds it where it is installed
  except ImportError as error:
    message = 'the TPU compiler is not installed; run: pip install "ptjax[plan]"'
    raise ValueError(message) from error
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  # Else one process on a machine holds the compiler, and another waits or fails.
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  # Only silence two warnings on stderr.
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
