"""Which mesh, micro-batch, remat and number of slots are best, and the longest context that fits.

Both ask the formulas of `estimate`, since a compilation takes a minute; `confirm` puts what they
find before the compiler.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal

from ptjax.models.config import DecoderConfig
from ptjax.planning import flops
from ptjax.planning.estimate import estimate
from ptjax.planning.memory import Live, device_bytes
from ptjax.planning.roofline import counts
from ptjax.planning.setup import Setup, set_up
from ptjax.planning.topology import Topology
from ptjax.train.experiment import Experiment

_ROWS, _SLOTS = (1, 2, 4, 8), (1, 4, 16, 64)
_REMAT: tuple[Literal["none", "dots", "attention", "full"], ...] = (
  "none",
  "dots",
  "attention",
  "full",
)
CONTEXT_STEP, _LONGEST = 1024, 1 << 24


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A configuration and what the formulas say of it.

  Attributes:
    changes: overrides of the experiment, as `--config.KEY=VALUE` takes them.
    experiment: with the changes.
    live: its fullest phase.
    seconds: of a step at least, by formula.
  """

  changes: dict[str, str]
  experiment: Experiment
  live: Live
  seconds: float


def search(e: Experiment, shape: DecoderConfig, topology: Topology) -> list[Candidate]:
  """The candidates that fit by estimate, fastest first."""
  devices = topology.devices()
  found = []
  for changes, changed in candidates(e, shape, topology.num_devices):
    try:
      setup = set_up(changed, shape, devices)
    except ValueError:
      continue  # a mesh that does not divide this model
    live = max(estimate(setup), key=lambda phase: phase.total)
    if live.total <= topology.chip.hbm:
      found.append(Candidate(changes, changed, live, least_seconds(setup, topology)))
  return sorted(found, key=lambda c: c.seconds)


def candidates(
  e: Experiment, shape: DecoderConfig, devices: int
) -> Iterator[tuple[dict[str, str], Experiment]]:
  """Overrides and the experiments that they make: fsdp against tensor, rows, remat, slots."""
  widths = [t for t in (1, 2, 4, 8) if devices % t == 0 and shape.num_kv_heads % t == 0]
  for tensor, rows, remat, slots in itertools.product(widths, _ROWS, _REMAT, _SLOTS):
    batch = devices // tensor
    changes = {
      "mesh.fsdp": str(batch),
      "mesh.tensor": str(tensor),
      "pack.rows": str(rows * batch),
      "model.remat": remat,
      "engine.num_slots": str(slots * batch),
    }
    yield (
      changes,
      dataclasses.replace(
        e,
        mesh=dataclasses.replace(e.mesh, data=1, fsdp=batch, tensor=tensor),
        pack=dataclasses.replace(e.pack, rows=rows * batch),
        model=dataclasses.replace(e.model, remat=remat),
        engine=dataclasses.replace(e.engine, num_slots=slots * batch),
      ),
    )


def least_seconds(setup: Setup, topology: Topology) -> float:
  """Of a step: gradients bound by compute or by gathering the weights over fsdp, decoding by
  reading weights and cache; both also by the sums over the tensor axis."""
  e, c, chip, shape = setup.experiment, setup.model, topology.chip, setup.mesh.shape
  often = counts(setup)
  rate = chip.flops if c.matmul_dtype == "bfloat16" else chip.flops / 6
  compute = flops.gradient(c, e) / setup.mesh.size / rate
  link = 2 * chip.link_bandwidth
  weights = 2.0 * c.num_params / shape["tensor"]
  # Forward, backward, and the sum of the gradients; remat gathers once more.
  gathers = (3 + (c.remat == "full")) * weights * (shape["fsdp"] - 1) / shape["fsdp"] / link
  batch = setup.mesh.size // shape["tensor"]
  tokens = e.pack.rows * e.pack.length / batch
  sums = _tensor_sums(c, tokens, shape["tensor"]) / link
  gradient = often["policy gradient"] * (max(compute, gathers) + 3 * sums)
  held = device_bytes((setup.head, setup.layers)) + device_bytes(setup.cache)
  slots = e.engine.num_slots / batch
  token = (
    max(
      held / chip.hbm_bandwidth,
      flops.decode(c, e) / e.engine.decode_chunk / setup.mesh.size / rate,
      weights * (shape["fsdp"] - 1) / shape["fsdp"] / link,
    )
    + _tensor_sums(c, slots, shape["tensor"]) / link
  )
  return gradient + often["decode"] * e.engine.decode_chunk * token


def _tensor_sums(c: DecoderConfig, tokens: float, tensor: int) -> float:
  """Bytes that a device sends for the two sums of each layer's forward pass."""
  return 2 * c.num_layers * tokens * c.d_model * 2 * 2 * (tensor - 1) / tensor


def max_context(e: Experiment, shape: DecoderConfig, topology: Topology) -> int:
  """The longest context that fits by estimate, tokens in steps of 1024; 0 where none does.

  Rows and slots keep their number, answers their share of the context.
  """
  devices = topology.devices()

  def fits(steps: int) -> bool:
    setup = set_up(with_context(e, steps * CONTEXT_STEP), shape, devices)
    return max(live.total for live in estimate(setup)) <= topology.chip.hbm

  low, high = 0, 1
  while high * CONTEXT_STEP <= _LONGEST and fits(high):
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
  return low * CONTEXT_STEP


def with_context(e: Experiment, length: int) -> Experiment:
  """The experiment at another context; action slots and answers keep their share of it."""
  share = e.policy.max_new_tokens / e.engine.max_length
  new = max(1, int(length * share))
  actions = max(new, int(length * e.pack.actions / e.pack.length))
  return dataclasses.replace(
    e,
    policy=dataclasses.replace(e.policy, max_new_tokens=new),
    engine=dataclasses.replace(e.engine, max_length=length),
    pack=dataclasses.replace(e.pack, length=length, actions=actions),
  )
