"""Constructive solid geometry: a tree of boxes and cylinders, and its text in two languages.

Lengths are in millimetres. The tree is made of tuples, so that it crosses to the sandbox as JSON:

  ("box", (x, y, z) of its size, (x, y, z) of its least corner)
  ("cylinder", height, radius at its foot, radius at its top, centre of its foot, axis)
  ("union" | "difference", first, second, ...)
"""

import json
from typing import Any

SEGMENTS = 96  # of every circle

Tree = tuple[Any, ...]
Triple = tuple[float, float, float]

# Degrees about x, y, z that turn the z axis to another.
TURNS = {"x": (0, 90, 0), "y": (-90, 0, 0), "z": (0, 0, 0)}


def box(size: Triple, at: Triple = (0, 0, 0)) -> Tree:
  """A box of `size` whose least corner is `at`."""
  return ("box", size, at)


def cylinder(
  height: float, radius: float, at: Triple = (0, 0, 0), axis: str = "z", top: float | None = None
) -> Tree:
  """A cylinder, or a cone whose other end has the radius `top`, from `at` along an axis."""
  return ("cylinder", height, radius, radius if top is None else top, at, axis)


def union(*parts: Tree) -> Tree:
  """All parts together; one part is itself."""
  return parts[0] if len(parts) == 1 else ("union", *parts)


def difference(solid: Tree, *holes: Tree) -> Tree:
  """`solid` without the holes."""
  return ("difference", solid, *holes) if holes else solid


def to_openscad(tree: Tree) -> str:
  """A program of OpenSCAD that makes the solid."""
  return f"$fn = {SEGMENTS};\n{_openscad(tree, '')}"


def _openscad(tree: Tree, indent: str) -> str:
  match tree:
    case ("box", size, at):
      return f"{indent}translate({list(at)}) cube({list(size)});\n"
    case ("cylinder", height, foot, top, at, axis):
      turn = f" rotate({list(TURNS[axis])})" if axis != "z" else ""
      shape = f"cylinder(h = {height}, r1 = {foot}, r2 = {top});"
      return f"{indent}translate({list(at)}){turn} {shape}\n"
    case (operation, *parts):
      inside = "".join(_openscad(part, indent + "  ") for part in parts)
      return f"{indent}{operation}() {{\n{inside}{indent}}}\n"
  raise ValueError(f"{tree!r} is no solid")


def to_python(tree: Tree) -> str:
  """A program that leaves the solid as `solid`, by the library manifold3d."""
  return f"from manifold3d import Manifold\n\nsolid = {_python(tree, '')}\n"


def _python(tree: Tree, indent: str) -> str:
  match tree:
    case ("box", size, at):
      return f"Manifold.cube({list(size)}).translate({list(at)})"
    case ("cylinder", height, foot, top, at, axis):
      turn = f".rotate({list(TURNS[axis])})" if axis != "z" else ""
      shape = f"Manifold.cylinder({height}, {foot}, {top}, {SEGMENTS})"
      return f"{shape}{turn}.translate({list(at)})"
    case (operation, *parts):
      sign = "+" if operation == "union" else "-"
      deeper = indent + "  "
      terms = f"\n{deeper}{sign} ".join(_python(part, deeper) for part in parts)
      return f"(\n{deeper}{terms}\n{indent})"
  raise ValueError(f"{tree!r} is no solid")


def to_json(tree: Tree) -> str:
  """The tree as `measure.py` reads it."""
  return json.dumps(tree)
