"""Modelling in three dimensions: a part in words, to be built in OpenSCAD or with manifold3d.

The answer runs in one sandbox and leaves a mesh; another measures it against the solid that was
asked for, by boolean operations (`solid_parts/measure.py`), so that nothing the answer does can
touch its verdict. The right solid never enters the first.
"""

import dataclasses
import functools
import importlib.resources
import json
import random
from typing import Literal

from ptjax.domains import code_grading, solid_parts
from ptjax.domains.domain import Domain
from ptjax.domains.solid_parts import csg
from ptjax.domains.solid_parts.families import FAMILIES
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure
from sandbox_runner import Limits, Pool, Request, Result

IMAGE = "modeling3d"
LIMITS = Limits(wall_s=20.0, cpu_s=20.0, memory_mb=768, pids=64, disk_mb=64)
ENOUGH = 0.99  # overlap of a solid that differs by how finely its circles are cut
MOST_OFF = 0.005  # of the longest side
MESH, PICTURE = "mesh.off", "picture.png"

Language = Literal["openscad", "manifold"]

_ASKED: dict[Language, str] = {
  "openscad": "Write a program in OpenSCAD that makes this part.",
  "manifold": (
    "Write a Python program that makes this part with the library manifold3d and leaves it in a "
    "variable `solid` of type manifold3d.Manifold."
  ),
}
_FENCE: dict[Language, str] = {"openscad": "openscad", "manifold": "python"}
_RULES = (
  "Lengths are in millimetres; cut circles into at least 64 segments. Reply with the program "
  "alone, in one fenced block."
)
# Runs the answer, then writes what it left as `solid`.
_RUN_PYTHON = f"""\
import runpy
solid = runpy.run_path("answer.py")["solid"]
mesh = solid.to_mesh()
points, triangles = mesh.vert_properties[:, :3], mesh.tri_verts
with open("{MESH}", "w") as file:
  print("OFF", len(points), len(triangles), 0, file=file)
  for point in points: print(*point, file=file)
  for triangle in triangles: print(3, *triangle, file=file)
"""


@dataclasses.dataclass(frozen=True)
class Likeness:
  """How like the solid asked for a solid is.

  Attributes:
    overlap: volume of the intersection over that of the union.
    box_overlap: what the solid's own bounding box would reach.
    volume: its volume over the right one.
    off_bounds: farthest that a face of its bounding box lies off, over the longest side.
    genus, wanted_genus: handles; a hole all the way through is one.
  """

  overlap: float
  box_overlap: float
  volume: float
  off_bounds: float
  genus: int
  wanted_genus: int


def score(likeness: Likeness) -> float:
  """1 for the part itself, 0 for no better than its bounding box; half for each thing wrong.

  Those are the number of handles, and an extent that is off by more than `MOST_OFF`.
  """
  baseline = likeness.box_overlap
  gained = (likeness.overlap - baseline) / (ENOUGH - baseline)
  value = min(max(gained, 0.0), 1.0)
  if likeness.genus != likeness.wanted_genus:
    value /= 2
  return value / 2 if likeness.off_bounds > MOST_OFF else value


async def make_mesh(language: Language, program: str, pool: Pool) -> bytes | None:
  """Runs a program in the sandbox; the mesh that it makes, None where it makes none.

  Raises InfraFailure for a lost sandbox.
  """
  source = program.encode(errors="replace")
  if language == "openscad":
    request = Request(
      ("openscad", "-o", MESH, "answer.scad"), {"answer.scad": source}, limits=LIMITS
    )
  else:
    files = {"answer.py": source, "run.py": _RUN_PYTHON.encode()}
    request = Request(("python3", "run.py"), files, limits=LIMITS)
  result = await _run(pool, dataclasses.replace(request, copy_out=(MESH,)))
  return result.files.get(MESH)


async def measure(mesh: bytes, wanted: csg.Tree, pool: Pool) -> Likeness | None:
  """Compares a mesh with a solid; None where the mesh bounds none.

  Raises InfraFailure for a lost sandbox, RuntimeError where the measurement itself fails.
  """
  script = importlib.resources.files(solid_parts).joinpath("measure.py").read_bytes()
  files = {"measure.py": script, "solid.json": csg.to_json(wanted).encode(), MESH: mesh}
  result = await _run(
    pool, Request(("python3", "measure.py", "solid.json", MESH), files, limits=LIMITS)
  )
  if result.outcome in ("timeout", "oom"):
    return None  # a mesh too large to compare
  if (result.outcome, result.exit_code) != ("exit", 0):
    end = result.stderr.decode(errors="replace")[-500:]
    raise RuntimeError(f"measuring a solid ended as {result.outcome} {result.exit_code}: {end}")
  told = json.loads(result.stdout)
  return None if "fault" in told else Likeness(**told)


async def draw_picture(mesh: bytes, pool: Pool, size: tuple[int, int] = (640, 480)) -> bytes:
  """A PNG of a mesh, `size` in pixels.

  Raises InfraFailure for a lost sandbox, RuntimeError for a mesh that cannot be drawn.
  """
  width, height = size
  command = f"xvfb-run -a openscad -o {PICTURE} --imgsize={width},{height} --viewall --autocenter"
  files = {"show.scad": f'import("{MESH}", convexity = 10);'.encode(), MESH: mesh}
  argv = ("sh", "-c", f"{command} show.scad")
  result = await _run(pool, Request(argv, files, limits=LIMITS, copy_out=(PICTURE,)))
  if PICTURE not in result.files:
    end = result.stderr.decode(errors="replace")[-500:]
    raise RuntimeError(f"drawing a solid ended as {result.outcome} {result.exit_code}: {end}")
  return result.files[PICTURE]


async def _run(pool: Pool, request: Request) -> Result:
  result = await pool.run(request)
  if result.is_infra_failure:
    raise InfraFailure(f"sandbox: {result.outcome} {result.detail}".rstrip())
  return result


def _pool(task: Task, services: Services) -> Pool:
  pool = services.pool(IMAGE)
  if pool is None:
    raise ValueError(f"domain {task.domain} needs sandboxes of image {IMAGE}; give Services a pool")
  return pool


async def picture(task: Task, response: str, services: Services) -> bytes:
  """A PNG of the solid that an answer makes. Raises ValueError where it makes none."""
  pool, program = _pool(task, services), code_grading.extract_code(response)
  mesh = await make_mesh(task.data["language"], program, pool)
  if mesh is None:
    raise ValueError(f"{task.domain}: the answer makes no mesh, so there is nothing to draw")
  return await draw_picture(mesh, pool)


async def grade_solid(task: Task, response: str, services: Services) -> float:
  """`score` of the solid that the answer makes; 0 where it makes none."""
  pool = _pool(task, services)
  program = code_grading.extract_code(response)
  if not program.strip():
    return 0.0
  mesh = await make_mesh(task.data["language"], program, pool)
  likeness = None if mesh is None else await measure(mesh, task.data["solid"], pool)
  return 0.0 if likeness is None else score(likeness)


def make_task(seed: int, split: Split, language: Language) -> Task:
  """Draws a part of one of the families."""

  def part(rng: random.Random):
    return rng.choice(FAMILIES)(rng)

  text, solid = draw(part, lambda drawn: drawn[0], seed, split)
  content = f"{_ASKED[language]}\n\n{text}\n\n{_RULES}"
  data = {"language": language, "solid": solid}
  return Task(f"solids/{language}", seed, split, ({"role": "user", "content": content},), data)


def oracle(task: Task) -> str:
  """The solid itself, as a program."""
  language = task.data["language"]
  write = csg.to_openscad if language == "openscad" else csg.to_python
  return f"```{_FENCE[language]}\n{write(task.data['solid'])}```"


def build(language: Language) -> Domain:
  """Makes the domain of one language."""
  return Domain(
    name=f"solids/{language}",
    family="3d",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=lambda seed, split: make_task(seed, split, language),
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", code_grading.grade_fence)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("solid", grade_solid)),)),
    ),
    passed=lambda rewards: rewards["domain/solid"] == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    picture=picture,
    sandboxed=True,
    image=IMAGE,
  )


_FORGE = f"import os\nopen({MESH!r}, 'w')"

ATTACKS: tuple[str, ...] = (
  "cube(1000);",
  'import("/etc/passwd");',
  "sphere(1e30);",
  "from manifold3d import Manifold\nsolid = Manifold()",
  "class Solid:\n  def to_mesh(self): raise SystemExit(0)\nsolid = Solid()",
  f"{_FORGE}.write('OFF 3 1 0\\n0 0 0\\n1 0 0\\n0 1 0\\n3 0 1 2')\nos._exit(0)",
  f"{_FORGE}.write('OFF 1000000000 1 0')\nos._exit(0)",
  "import sys\nprint('{\"overlap\": 1.0}')\nsys.exit(0)",
)

DOMAINS = {f"solids/{language}": functools.partial(build, language) for language in _ASKED}
