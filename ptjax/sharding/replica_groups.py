"""The devices that take part in a collective together, in each of the forms that XLA prints."""

import re

import numpy as np

_EXPLICIT = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=(\[\d+,\d+\])<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(
  r"replica_groups=mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\((?P<ids>(?:[^()]|\([^()]*\))*)\))?"
  r" ?\{(?P<over>[^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_AXIS_REFERENCE = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_ARRANGED = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")


def groups_of(attributes: str, num_devices: int) -> tuple[np.ndarray, bool]:
  """(groups [G, S] of device numbers, whether they are the pairs of a permute).

  Numbers count the program's devices in the order of its mesh.

  Raises:
    ValueError: none of the known forms.
  """
  if found := _PAIRS.search(attributes):
    pairs = np.asarray(_rows(found[1]), int).reshape(-1, 2)
    return (pairs if pairs.size else np.zeros((1, 2), int)), True
  if found := _EXPLICIT.search(attributes):
    rows = _rows(found[1])
    return np.asarray(rows if rows else [range(num_devices)], int), False
  if found := _IOTA.search(attributes):
    return _arranged(found[2]).reshape(_numbers(found[1])), False
  if found := _MESH.search(attributes):
    return _mesh_groups(found["axes"], found["ids"], found["over"]), False
  raise ValueError(f"no known form of replica groups in {attributes[:200]!r}")


def _rows(text: str) -> list[list[int]]:
  return [_numbers(row) for row in re.findall(r"\{([\d,]*)\}", text)]


def _numbers(text: str) -> list[int]:
  return [int(n) for n in re.findall(r"\d+", text)]


def _arranged(text: str) -> np.ndarray:
  """`[4,2]T(1,0)`: 0, 1, ... in that shape, transposed, flat."""
  found = _ARRANGED.fullmatch(text)
  if found is None:
    return np.asarray(_numbers(text), int)
  shape = _numbers(found[1])
  devices = np.arange(np.prod(shape)).reshape(shape)
  return (devices.transpose(_numbers(found[2])) if found[2] else devices).ravel()


def _mesh_groups(axes: str, ids: str | None, over: str) -> np.ndarray:
  """Groups over some axes, or parts of axes, of a mesh of the program's own naming.

  `'a':(2)4` is the part of size 4 of the axis a that lies below a part of size 2.
  """
  sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
  parts: list[tuple[str, int]] = []  # every axis cut where a reference cuts it
  chosen = []
  references = {name: (before, size) for name, before, size in _AXIS_REFERENCE.findall(over)}
  for name, size in sizes.items():
    before, part = references.get(name, ("", ""))
    if not before:
      cut = [size]
      inside = [name in references]
    else:
      cut = [int(before), int(part), size // (int(before) * int(part))]
      inside = [False, True, False]
    parts += [(name, n) for n in cut]
    chosen += inside
  shape = [n for _, n in parts]
  devices = np.arange(np.prod(shape, dtype=int)) if ids is None else _arranged(ids)
  devices = devices.reshape(shape)
  order = [i for i, c in enumerate(chosen) if not c] + [i for i, c in enumerate(chosen) if c]
  group = int(np.prod([n for n, c in zip(shape, chosen, strict=True) if c], dtype=int))
  return devices.transpose(order).reshape(-1, group)
