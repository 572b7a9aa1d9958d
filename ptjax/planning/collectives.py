"""What the devices send each other, from the compiled program."""

import dataclasses
import math
import re
from collections import defaultdict
from typing import Any

import numpy as np
from jax.sharding import Mesh

from ptjax.planning.hlo import Instruction, Module, array_bytes

# Bytes that a device sends for a result of one byte in a group of n devices, on a ring. The
# result of an all-gather is whole, that of a reduce-scatter one share.
_SENT = {
  "all-gather": lambda n: (n - 1) / n,
  "reduce-scatter": lambda n: n - 1,
  "all-reduce": lambda n: 2 * (n - 1) / n,
  "all-to-all": lambda n: (n - 1) / n,
  "ragged-all-to-all": lambda n: (n - 1) / n,
  "collective-permute": lambda n: 1,
  "collective-broadcast": lambda n: 1,
}


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Collectives of one kind along the same mesh axes.

  Attributes:
    kind: such as all-gather.
    axes: mesh axes along which the devices of a group differ.
    dcn: whether groups reach over slices.
    count: executions.
    sent: bytes that one device sends, all executions together.
  """

  kind: str
  axes: tuple[str, ...]
  dcn: bool
  count: int
  sent: float


def traffic(module: Module, mesh: Mesh) -> list[Traffic]:
  """All collectives of a program, loops counted as often as they run; most bytes first."""
  totals: dict[tuple[str, tuple[str, ...], bool], list[float]] = defaultdict(lambda: [0, 0.0])
  for line, times in module.walk():
    kind = line.opcode.removesuffix("-start")
    if kind not in _SENT:
      continue
    group = _group(line, mesh.size)
    if len(group) < 2:
      continue
    axes, dcn = _span(group, mesh)
    total = totals[kind, axes, dcn]
    total[0] += times
    total[1] += times * _SENT[kind](len(group)) * array_bytes(line.result)
  found = [
    Traffic(kind, axes, dcn, int(count), sent)
    for (kind, axes, dcn), (count, sent) in totals.items()
  ]
  return sorted(found, key=lambda t: -t.sent)


def _group(line: Instruction, num_devices: int) -> list[int]:
  """Positions in the mesh of the devices of one group; for a permutation, of one pair."""
  pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", line.text)
  if pairs:
    links = [tuple(map(int, p)) for p in re.findall(r"\{(\d+),(\d+)", pairs[0])]
    return list(next(((a, b) for a, b in links if a != b), ()))
  text = line.text.partition("replica_groups=")[2]
  if text.startswith("{{"):
    return [int(i) for i in text[2 : text.index("}")].split(",")]
  if text.startswith("mesh["):
    return _mesh_group(text)
  iota = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
  if iota:
    ids = np.arange(num_devices).reshape(_ints(iota[2]))
    ids = ids.transpose(_ints(iota[3])) if iota[3] else ids
    return ids.reshape(_ints(iota[1]))[0].tolist()
  return list(range(num_devices))  # no groups: all devices are one


def _mesh_group(text: str) -> list[int]:
  """mesh['a'=4,'b'=2] {'a'}: devices 0 and on that differ along a; {'a':(2)2} is a part of one."""
  sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", text.partition("]")[0])}
  named = re.search(r"\{([^}]*)\}", text)
  strides, stride = {}, 1
  for name in reversed(sizes):
    strides[name], stride = stride, stride * sizes[name]
  group = [0]
  for name, before, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[1] if named else ""):
    count = int(part) if part else sizes[name]
    step = strides[name] * (sizes[name] // (int(before) * count) if part else 1)
    group = [g + i * step for g in group for i in range(count)]
  return group


def _ints(text: str) -> tuple[int, ...]:
  return tuple(int(i) for i in text.split(","))


def _span(group: list[int], mesh: Mesh) -> tuple[tuple[str, ...], bool]:
  """The mesh axes along which a group's devices differ, and whether their slices do."""
  places = np.stack(np.unravel_index(group, tuple(mesh.shape.values())))
  axes = tuple(a for a, where in zip(mesh.axis_names, places, strict=True) if len(set(where)) > 1)
  devices: Any = mesh.devices.reshape(-1)
  slices = {getattr(devices[i], "slice_index", 0) for i in group}
  return axes, len(slices) > 1


def total_sent(flows: list[Traffic], *, dcn: bool) -> float:
  """Bytes that a device sends over one of the two networks."""
  return math.fsum(t.sent for t in flows if t.dcn == dcn)
