"""Compares a mesh with the solid that was asked for; runs in a sandbox, by manifold3d and numpy.

Called as `measure.py solid.json mesh.off`. It prints one line of JSON: what `Likeness` holds, or
`{"fault": why the mesh bounds no solid}`. Only this program writes to that stream: what a policy
wrote has run before, elsewhere, and left nothing but the mesh.
"""

import json
import sys

SEGMENTS = 96
TURNS = {"x": (0, 90, 0), "y": (-90, 0, 0), "z": (0, 0, 0)}
MOST_VERTICES = 200_000


class MeshFault(Exception):
  """The file bounds no solid."""


def build(tree):
  """The solid of a tree of `csg.py`."""
  from manifold3d import Manifold

  match tree:
    case ["box", size, at]:
      return Manifold.cube(size).translate(at)
    case ["cylinder", height, foot, top, at, axis]:
      return Manifold.cylinder(height, foot, top, SEGMENTS).rotate(TURNS[axis]).translate(at)
    case ["union", *parts]:
      return sum((build(part) for part in parts[1:]), build(parts[0]))
    case ["difference", first, *holes]:
      solid = build(first)
      for hole in holes:
        solid -= build(hole)
      return solid
  raise ValueError(f"{tree!r} is no solid")


def read_off(text):
  """Vertices f32[n, 3] and triangles u32[m, 3] of a mesh in the Object File Format.

  Raises MeshFault for other text, too many vertices, and indices of none.
  """
  import numpy as np

  words = [line.partition("#")[0].split() for line in text.splitlines()]
  words = [line for line in words if line]
  try:
    head, *rest = words
    if head[0] != "OFF":
      raise MeshFault("no mesh in the Object File Format")
    counts = head[1:] or rest.pop(0)
    vertices, faces = int(counts[0]), int(counts[1])
    if not 0 < vertices <= MOST_VERTICES:
      raise MeshFault(f"{vertices} vertices; up to {MOST_VERTICES} are looked at")
    points = np.array([[float(x) for x in line[:3]] for line in rest[:vertices]], np.float32)
    corners = [_corners(line) for line in rest[vertices : vertices + faces]]
    if len(corners) != faces:
      raise MeshFault(f"a broken mesh: {len(corners)} faces where {faces} are told")
    fans = [(c[0], c[i], c[i + 1]) for c in corners for i in range(1, len(c) - 1)]
    triangles = np.array(fans, np.int64).reshape(-1, 3)
  except (ValueError, IndexError) as error:
    raise MeshFault(f"a broken mesh: {error}") from error
  if points.shape != (vertices, 3) or not np.isfinite(points).all():
    raise MeshFault("a vertex has no three finite coordinates")
  if triangles.size and (triangles.min() < 0 or triangles.max() >= vertices):
    raise MeshFault("a triangle names a vertex that is not there")
  return points, triangles.astype(np.uint32)


def _corners(line):
  """Indices of a face; a colour may follow them."""
  count = int(line[0])
  if count < 3 or len(line) <= count:
    raise MeshFault(f"a broken mesh: a face of {len(line) - 1} corners says it has {count}")
  return [int(word) for word in line[1 : 1 + count]]


def solid_of(points, triangles):
  """The solid within a mesh; raises MeshFault where that is none, or empty."""
  import manifold3d

  solid = manifold3d.Manifold(manifold3d.Mesh(points, triangles))
  if solid.status() != manifold3d.Error.NoError:
    raise MeshFault(f"the mesh is not watertight: {solid.status()}")
  if not solid.volume() > 0:
    raise MeshFault("the solid is empty, or inside out")
  return solid


def compare(solid, wanted):
  """What `Likeness` of `ptjax.domains.solids` holds."""
  bounds, other = wanted.bounding_box(), solid.bounding_box()
  corner, size = bounds[:3], [bounds[i + 3] - bounds[i] for i in range(3)]
  around = type(wanted).cube(size).translate(corner)
  return {
    "overlap": (solid ^ wanted).volume() / (solid + wanted).volume(),
    "box_overlap": wanted.volume() / around.volume(),
    "volume": solid.volume() / wanted.volume(),
    "off_bounds": max(abs(a - b) for a, b in zip(bounds, other, strict=True)) / max(size),
    "genus": solid.genus(),
    "wanted_genus": wanted.genus(),
  }


def main():
  tree, mesh = sys.argv[1:]
  with open(tree) as file:
    wanted = build(json.load(file))
  try:
    with open(mesh, errors="replace") as file:
      told = compare(solid_of(*read_off(file.read())), wanted)
  except MeshFault as fault:
    told = {"fault": str(fault)}
  print(json.dumps(told))


if __name__ == "__main__":
  main()
