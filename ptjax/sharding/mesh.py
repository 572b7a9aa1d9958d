"""One device mesh for the whole run."""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import Mesh

AXES = ("replica", "data", "fsdp", "context", "tensor", "expert")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each mesh axis; at most one may be -1, which takes what is left.

  Attributes:
    replica: copies of everything, one per slice (data-centre network).
    data: batch rows; parameters are copied.
    fsdp: batch rows; parameters are split.
    context: positions of a sequence.
    tensor: heads, feed-forward width, vocabulary.
    expert: experts of a mixture.
  """

  replica: int = 1
  data: int = 1
  fsdp: int = -1
  context: int = 1
  tensor: int = 1
  expert: int = 1

  def __post_init__(self):
    sizes = [getattr(self, axis) for axis in AXES]
    if any(n == 0 or n < -1 for n in sizes):
      raise ValueError(f"mesh sizes {sizes} must be positive, or -1 for one of them")
    if sizes.count(-1) > 1:
      raise ValueError(f"mesh sizes {sizes}: only one axis may be -1")


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
  """The mesh over all devices, axes in the order of `AXES`.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  sizes = [getattr(config, axis) for axis in AXES]
  if -1 in sizes:
    rest = math.prod(n for n in sizes if n != -1)
    if len(devices) % rest:
      raise ValueError(
        f"{len(devices)} devices are not divisible by the fixed mesh axes "
        f"{dict(zip(AXES, sizes, strict=True))} (product {rest})"
      )
    sizes[sizes.index(-1)] = len(devices) // rest
  if math.prod(sizes) != len(devices):
    raise ValueError(
      f"mesh {dict(zip(AXES, sizes, strict=True))} has {math.prod(sizes)} places for "
      f"{len(devices)} devices; set one axis to -1"
    )
  return Mesh(np.asarray(devices).reshape(sizes), AXES)


def on_cpu(mesh: Mesh) -> bool:
  """Whether programs on this mesh run on CPUs, whatever the machine that compiles them."""
  return mesh.devices.flat[0].platform == "cpu"
