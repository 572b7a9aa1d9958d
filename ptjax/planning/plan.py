"""A plan: does the experiment fit the slice, what fills it, what does a step cost at least."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from ptjax.models.config import DecoderConfig
from ptjax.planning import advice
from ptjax.planning.compiler import Compiled, compile_program
from ptjax.planning.estimate import estimate
from ptjax.planning.memory import Live, device_bytes, live
from ptjax.planning.programs import programs, residents
from ptjax.planning.roofline import Roofline, roofline
from ptjax.planning.setup import set_up
from ptjax.planning.topology import Topology
from ptjax.train.experiment import Experiment

# XLA compiles much of a program on one thread: two programs at a time keep two cores busy.
_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the compiler says of an experiment on a slice; bytes are of one device.

  Attributes:
    experiment: its name.
    model: name or path of the model's shape.
    parameters: of the policy.
    topology: the slice.
    mesh: devices along each axis.
    residents: bytes of what lives from the first step to the last, by name.
    programs: as compiled.
    live: all that is on a device while each of them runs; without those that do not fit.
    roofline: the least time of those that run in a step.
    seconds: that the plan took.
    largest: where it does not fit, the three largest things on a device and their bytes, by
      formula: the compiler often gives only a sum.
    hints: what would make it fit, where it does not.
  """

  experiment: str
  model: str
  parameters: int
  topology: Topology
  mesh: dict[str, int]
  residents: dict[str, int]
  programs: tuple[Compiled, ...]
  live: tuple[Live, ...]
  roofline: tuple[Roofline, ...]
  seconds: float
  largest: tuple[tuple[str, int], ...] = ()
  hints: tuple[str, ...] = ()

  @property
  def hbm(self) -> float:
    """Bytes of a device that programs can use."""
    return self.topology.chip.hbm

  @property
  def peak(self) -> Live | None:
    """Where most memory is used; None where no program compiled."""
    return max(self.live, key=lambda found: found.total, default=None)

  @property
  def fits(self) -> bool:
    """Every program compiles, and all that lives together has room while each of them runs."""
    compiled = all(p.error is None for p in self.programs)
    return compiled and self.peak is not None and self.peak.total <= self.hbm

  @property
  def step_seconds(self) -> float:
    """Least time of a step."""
    return sum(r.seconds for r in self.roofline)


def make_plan(
  e: Experiment,
  shape: DecoderConfig,
  topology: Topology,
  on_program: Callable[[Compiled], None] = lambda _: None,
) -> Plan:
  """Compiles all programs of the experiment for the slice.

  Args:
    e: what is to run.
    shape: of its model, see `models.presets.shape_of`.
    topology: where.
    on_program: is told of each program when it is compiled.

  Raises:
    ValueError: the mesh does not fit the devices or the shapes; the TPU compiler lacks.
  """
  start = time.monotonic()
  setup = set_up(e, shape, topology.devices())
  held, wanted = residents(setup), programs(setup)
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    futures = [pool.submit(compile_program, p, setup.mesh) for p in wanted]
    for future in concurrent.futures.as_completed(futures):
      on_program(future.result())
    compiled = [future.result() for future in futures]
  lives = [
    live(setup, program, result, held)
    for program, result in zip(wanted, compiled, strict=True)
    if result.error is None
  ]
  plan = Plan(
    experiment=e.name,
    model=e.model.source,
    parameters=setup.model.num_params,
    topology=topology,
    mesh=dict(setup.mesh.shape),
    residents={name: device_bytes(tree) for name, tree in held.items()},
    programs=tuple(compiled),
    live=tuple(lives),
    roofline=tuple(roofline(setup, topology.chip, compiled)),
    seconds=time.monotonic() - start,
  )
  if plan.fits:
    return plan
  fullest = max(estimate(setup), key=lambda phase: phase.total)
  parts = sorted(fullest.parts.items(), key=lambda part: -part[1])
  hints = advice.hints(setup, plan.residents)
  return dataclasses.replace(plan, largest=tuple(parts[:3]), hints=hints)


def to_json(plan: Plan) -> dict[str, Any]:
  """The plan as JSON types: what `--json` writes. Bytes, seconds, operations."""
  tree = dataclasses.asdict(plan)
  tree["topology"] |= {"devices": plan.topology.num_devices}
  for program in tree["programs"]:
    program["buffers"] = program["buffers"][:10]
  for row, found in zip(tree["live"], plan.live, strict=True):
    row["total"] = found.total
  for row, found in zip(tree["roofline"], plan.roofline, strict=True):
    row |= {"bound": found.bound, "seconds": found.seconds}
  peak = plan.peak
  return tree | {
    "fits": plan.fits,
    "hbm": plan.hbm,
    "peak": None if peak is None else peak.total,
    "step_seconds": plan.step_seconds,
  }
