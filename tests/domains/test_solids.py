"""Solids: each family is what its oracle makes, near misses earn part, nothing forges a verdict."""

import asyncio
import dataclasses
import io
import random

import pytest
from PIL import Image

from ptjax.domains import solids
from ptjax.domains.admission import examine
from ptjax.domains.domain import grade_response
from ptjax.domains.solid_parts import csg, measure
from ptjax.domains.solid_parts.families import FAMILIES
from ptjax.envs.environment import Services
from ptjax.rewards.failures import InfraFailure
from sandbox_runner import Outcome

EXACT = solids.Likeness(1.0, 0.5, 1.0, 0.0, 2, 2)
CUBE = """OFF 4 4 0
0 0 0
1 0 0
0 1 0
0 0 1
3 0 2 1
3 0 1 3
3 0 3 2
3 1 2 3
"""


def likeness(language, program, wanted):
  """`use` of a fixture: what a program's mesh measures."""

  async def use(services):
    pool = services.pool(solids.IMAGE)
    mesh = await solids.make_mesh(language, program, pool)
    return mesh and await solids.measure(mesh, wanted, pool)

  return use


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_every_family_leaves_much_of_its_box_empty(family, with_image):
  async def use(services):
    pool = services.pool(solids.IMAGE)
    drawn = [family(random.Random(seed))[1] for seed in range(4)]
    meshes = [await solids.make_mesh("manifold", csg.to_python(solid), pool) for solid in drawn]
    return [await solids.measure(m, s, pool) for m, s in zip(meshes, drawn, strict=True)]

  for told in with_image(solids.IMAGE, use):
    assert told.overlap > 0.9999
    assert told.genus == told.wanted_genus
    assert told.box_overlap < 0.9
    assert solids.score(told) == 1.0


@pytest.mark.parametrize("axis", "xyz")
def test_both_languages_make_the_same_solid(axis, with_image):
  cone = csg.cylinder(10, 3, (1, 2, 3), axis, top=5)
  solid = csg.union(csg.difference(csg.box((8, 6, 4), (-4, 0, 1)), csg.box((1, 1, 9))), cone)
  told = with_image(solids.IMAGE, likeness("openscad", csg.to_openscad(solid), solid))
  assert told.overlap > 0.999
  assert told.genus == told.wanted_genus


def test_the_score_of_a_likeness():
  assert solids.score(EXACT) == 1.0
  changed = {
    "overlap": ((0.99, 1.0), (0.745, 0.5), (0.5, 0.0), (0.1, 0.0)),
    "genus": ((1, 0.5), (3, 0.5)),
    "off_bounds": ((0.005, 1.0), (0.0051, 0.5)),
  }
  for field, cases in changed.items():
    for value, wanted in cases:
      told = dataclasses.replace(EXACT, **{field: value})
      assert solids.score(told) == pytest.approx(wanted), (field, value)


PLATE = csg.difference(csg.box((40, 30, 20)), csg.box((20, 32, 12), (10, -1, 9)))


@pytest.mark.parametrize(
  ("program", "low", "high"),
  [
    (csg.to_openscad(PLATE), 1, 1),
    ("cube([40, 30, 20]);", 0, 0),
    # A hole that is not asked for: the genus is wrong.
    (csg.to_openscad(csg.difference(PLATE, csg.cylinder(30, 1, (5, 15, -1)))), 0.45, 0.5),
    ("translate([1, 0, 0]) {" + csg.to_openscad(PLATE) + "}", 0.3, 0.45),
    ("module part() {}\npart();", 0, 0),
    ("cube(1", 0, 0),
    ("linear_extrude(3) square(4); polyhedron([[0,0,0],[1,0,0],[0,1,0]], [[0,1,2]]);", 0, 0),
  ],
)
def test_near_misses(program, low, high, with_image):
  told = with_image(solids.IMAGE, likeness("openscad", program, PLATE))
  assert low <= (0.0 if told is None else solids.score(told)) <= high


def test_admitted(with_image):
  for language in ("openscad", "manifold"):
    domain = solids.DOMAINS[f"solids/{language}"]()
    report = with_image(solids.IMAGE, lambda s, d=domain: examine(d, range(1), s))
    assert report.findings == ()


def test_an_answer_that_ends_its_process_keeps_nothing(with_image):
  """The whole right mesh, but written by hand, is an answer like another: it is the right solid."""
  program = f"open({solids.MESH!r}, 'w').write({CUBE!r})\nimport os; os._exit(0)"
  corner = csg.box((1, 1, 1))
  told = with_image(solids.IMAGE, likeness("manifold", program, corner))
  assert told.volume == pytest.approx(1 / 6, rel=1e-5)


def test_meshes_that_are_none():
  points, triangles = measure.read_off(CUBE)
  assert points.shape == (4, 3)
  assert triangles.shape == (4, 3)
  square = measure.read_off("OFF\n4 1 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0 # last\n4 0 1 2 3\n")[1]
  assert square.tolist() == [[0, 1, 2], [0, 2, 3]]
  for text, fault in {
    "": "a broken mesh",
    "solid x": "no mesh in the Object File Format",
    "OFF 3 1": "a broken mesh",
    "OFF 2 0\n0 0 0\n1 1": "a broken mesh",
    "OFF 999999 1": "999999 vertices; up to 200000",
    "OFF -1 1": "-1 vertices",
    CUBE.replace("1 0 0", "nan 0 0"): "no three finite coordinates",
    CUBE.replace("3 1 2 3", "3 1 2 4"): "names a vertex that is not there",
    CUBE.replace("3 1 2 3", "3 1 2 -1"): "names a vertex that is not there",
    CUBE.replace("3 1 2 3", "3 1 2"): "a face of 2 corners says it has 3",
    CUBE.replace("4 4 0", "4 5 0"): "4 faces where 5 are told",
  }.items():
    with pytest.raises(measure.MeshFault, match=fault):
      measure.read_off(text)


def test_a_picture_shows_the_solid(with_image):
  domain = solids.build("manifold")
  task = domain.make_task(0, "train")
  drawn = with_image(
    solids.IMAGE, lambda services: domain.picture(task, domain.oracle(task), services)
  )
  picture = Image.open(io.BytesIO(drawn))
  assert picture.size == (640, 480)
  assert len(picture.getcolors(1 << 19)) >= 4  # the ground, and faces in more than two lights


def test_what_makes_no_mesh_is_not_drawn(with_image):
  domain = solids.build("manifold")
  task = domain.make_task(0, "train")
  with pytest.raises(ValueError, match="makes no mesh"):
    with_image(solids.IMAGE, lambda services: domain.picture(task, "solid = 1", services))


def test_without_sandboxes_it_says_so():
  domain = solids.build("openscad")
  task = domain.make_task(0, "train")
  with pytest.raises(ValueError, match="solids/openscad needs sandboxes of image modeling3d"):
    asyncio.run(grade_response(domain, task, domain.oracle(task), Services()))


def test_a_lost_sandbox_is_no_verdict(with_image, monkeypatch):
  async def lost(self, request):
    result = await run(self, request)
    return dataclasses.replace(result, outcome=Outcome.sandbox_lost)

  async def use(services):
    with pytest.raises(InfraFailure, match="sandbox_lost"):
      await solids.make_mesh("openscad", "cube(1);", services.pool(solids.IMAGE))

  from sandbox_runner import Pool

  run = Pool.run
  monkeypatch.setattr(Pool, "run", lost)
  with_image(solids.IMAGE, use)
