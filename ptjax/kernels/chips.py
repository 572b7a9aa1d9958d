"""Figures of accelerators that decide how attention is computed."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device as JAX counts them.

  Attributes:
    name: as users know it.
    flops: bfloat16 FLOP/s of its matrix units.
    link: bytes/s of one inter-chip link, one way.
  """

  name: str
  flops: float
  link: float


# By `jax.Device.device_kind`. Sources: the vendor's pages of each TPU version; a v5p, v6e and
# v5e device is a chip, a tpu7x device half of one.
CHIPS = {
  "TPU v5 lite": Chip("v5e", 197e12, 45e9),
  "TPU v5": Chip("v5p", 459e12, 90e9),
  "TPU v6 lite": Chip("v6e", 920e12, 90e9),
  "TPU7x": Chip("tpu7x", 1153e12, 90e9),
}


def chip_of(device: jax.Device) -> Chip | None:
  """The figures of a TPU; None for other platforms.

  Raises:
    ValueError: a TPU that `CHIPS` lacks.
  """
  if device.platform != "tpu":
    return None
  if device.device_kind not in CHIPS:
    raise ValueError(
      f"no figures for {device.device_kind!r}; add it to kernels.chips.CHIPS, or set the context "
      f"attention to ring or all_gather"
    )
  return CHIPS[device.device_kind]
