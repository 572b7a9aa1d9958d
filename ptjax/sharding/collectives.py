"""What a compiled program moves between devices, read from its optimised HLO.

Kinds, bytes and mesh axes of the collectives, with the number of times that each runs: one in
the body of a scan over 32 layers runs 32 times.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
from jax.sharding import Mesh

from ptjax.sharding.hlo import Instruction, Program, computations, leaves, num_bytes, trip_count
from ptjax.sharding.replica_groups import groups_of

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
  "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective instruction.

  Attributes:
    kind: one of `KINDS`.
    axes: mesh axes along which the devices of a group differ, in the mesh's order; () where every
      device is alone in its group.
    over_slices: whether some group has devices of several TPU slices, and so uses the network
      between them (DCN).
    group: devices of a group; 2 of a permute, which sends from one to one.
    shapes: (dtype, shape) of its results on one device.
    result_bytes: of these results.
    times: how often a run of the program executes it.
    name: of the instruction.
    source: `op_name` of its metadata, the path of the JAX operation; "" where there is none.
  """

  kind: str
  axes: tuple[str, ...]
  over_slices: bool
  group: int
  shapes: tuple[tuple[str, tuple[int, ...]], ...]
  result_bytes: int
  times: int
  name: str
  source: str

  @property
  def wire_bytes(self) -> int:
    """Bytes that a device sends each time, by the ring algorithms (bandwidth-optimal)."""
    n = self.group
    match self.kind:
      case "all-reduce":
        return 2 * self.result_bytes * (n - 1) // n
      case "reduce-scatter":
        return self.result_bytes * (n - 1)
      case "all-gather" | "all-to-all" | "ragged-all-to-all":
        return self.result_bytes * (n - 1) // n
    return self.result_bytes if n > 1 else 0


@dataclasses.dataclass(frozen=True)
class Total:
  """Collectives of one kind over the same axes in one run of a program.

  Attributes:
    count: executions.
    result_bytes: of their results, on one device.
    wire_bytes: sent by one device, see `Collective.wire_bytes`.
  """

  count: int = 0
  result_bytes: int = 0
  wire_bytes: int = 0


def collectives(
  program: str | Program, mesh: Mesh, *, unknown_trips: int | None = None
) -> list[Collective]:
  """The collectives of a compiled program, in the order of its text.

  Args:
    program: `jax.stages.Compiled.as_text()`, or the computations in it.
    mesh: that the program was compiled for.
    unknown_trips: taken for loops whose number of iterations the compiler does not state. All
      branches of a conditional count, an upper bound.

  Raises:
    ValueError: replica groups in a form that is not known here, or a loop of unknown length around
      a collective without `unknown_trips`.
  """
  if isinstance(program, str):
    program = computations(program)
  times = _executions(program, unknown_trips)
  found = []
  for computation, instructions in program.items():
    if not times.get(computation):
      continue
    for instruction in instructions:
      kind = instruction.opcode.removesuffix("-start")
      if kind in KINDS:
        found.append(_collective(instruction, kind, computation, mesh, times[computation]))
  return found


def totals(found: Iterable[Collective]) -> dict[tuple[str, tuple[str, ...]], Total]:
  """The sum over each (kind, axes), sorted; groups of one device, which move nothing, left out."""
  sums: dict[tuple[str, tuple[str, ...]], Total] = {}
  for one in found:
    if not one.axes:
      continue
    key, n = (one.kind, one.axes), one.times
    have = sums.get(key, Total())
    sums[key] = Total(
      have.count + n,
      have.result_bytes + n * one.result_bytes,
      have.wire_bytes + n * one.wire_bytes,
    )
  return dict(sorted(sums.items()))


def _executions(program: Program, unknown_trips: int | None) -> dict[str, int]:
  """How often each computation runs. A computation stands in the text above those that call it."""
  holds = {name for name, body in program.items() if any(i.opcode.startswith(KINDS) for i in body)}
  for name, body in program.items():  # callees come first, so one pass is enough
    if any(holds.intersection(i.called) for i in body):
      holds.add(name)
  times = dict.fromkeys(program, 0)
  upwards = list(program)[::-1]
  times[upwards[0]] = 1  # the entry is the last
  for name in upwards:
    for instruction in program[name] if times[name] else ():
      inside = holds.intersection(instruction.called)
      if not inside:
        continue
      trips = 1
      if instruction.opcode == "while":
        known = trip_count(program, instruction)
        trips = unknown_trips if known is None else known
        if trips is None:
          raise ValueError(
            f"the compiler does not say how often the loop {instruction.name!r} runs, which holds "
            f"collectives; give unknown_trips"
          )
      for callee in inside:
        times[callee] += times[name] * trips
  return times


def _collective(
  instruction: Instruction, kind: str, computation: str, mesh: Mesh, times: int
) -> Collective:
  # Alone among them, a started all-reduce gives its results only.
  shapes = tuple(leaves(instruction.result if kind == "all-reduce" else instruction.made))
  groups, is_permute = groups_of(instruction.attributes, mesh.size)
  size, size_bytes = len(groups[0]), num_bytes(shapes)
  if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
    # A TPU writes a reduce-scatter as this fusion, of an all-reduce and a slice.
    kind, size_bytes = "reduce-scatter", size_bytes // size
  return Collective(
    kind=kind,
    axes=_varying(groups, mesh),
    over_slices=_over_slices(groups, mesh),
    group=2 if is_permute else size,
    shapes=shapes,
    result_bytes=size_bytes,
    times=times,
    name=instruction.name,
    source=instruction.op_name,
  )


def _varying(groups: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
  """Mesh axes along which the members of some group differ."""
  sizes = tuple(mesh.shape.values())
  assert math.prod(sizes) > groups.max()
  return tuple(
    name
    for name, places in zip(mesh.axis_names, np.unravel_index(groups, sizes), strict=True)
    if (places != places[:, :1]).any()
  )


def _over_slices(groups: np.ndarray, mesh: Mesh) -> bool:
  slices = np.asarray([getattr(device, "slice_index", 0) for device in mesh.devices.flat])[groups]
  return bool((slices != slices[:, :1]).any())
