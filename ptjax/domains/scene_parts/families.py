"""Families of scenes: each draws a specification in words, a scene, and what is to be seen of it.

Places are in the world, in metres; a second has 60 frames.
"""

import dataclasses
import random
from collections.abc import Callable

Triple = tuple[float, float, float]

FRAMES_A_SECOND = 60
EXACT, SETTLED = 0.01, 0.1  # metres off a place that was told, and one that physics finds

_THINGS = ("Anvil", "Barrel", "Crate", "Drum", "Egg", "Marble", "Orb", "Pebble", "Stone", "Urn")
_PLACES = ("Bench", "Deck", "Ground", "Ledge", "Pier", "Plateau", "Shelf", "Slab", "Stage", "Tier")


@dataclasses.dataclass(frozen=True)
class Sight:
  """A node that is to be seen.

  Attributes:
    frame: when, counted from the start.
    path: of the node below the root.
    kind: its class.
    place: where; None where that does not matter.
    off: metres that it may be off in each coordinate.
  """

  frame: int
  path: str
  kind: str
  place: Triple | None = None
  off: float = EXACT


@dataclasses.dataclass(frozen=True)
class Scene:
  """A task: what is asked, a scene that answers it, and how it is judged."""

  text: str
  answer: str
  sights: tuple[Sight, ...]


def vector(at: Triple) -> str:
  """A vector as scenes write it."""
  return "Vector3( {:g}, {:g}, {:g} )".format(*at)


def node(name: str, kind: str, parent: str | None = None, **properties: str) -> str:
  """A section of a node."""
  where = "" if parent is None else f' parent="{parent}"'
  lines = [f'[node name="{name}" type="{kind}"{where}]']
  return "\n".join([*lines, *(f"{key} = {value}" for key, value in properties.items())])


def resource(number: int, kind: str, *lines: str) -> str:
  """A section of a resource of the scene's own."""
  return "\n".join([f'[sub_resource type="{kind}" id={number}]', *lines])


def scene(*sections: str) -> str:
  """A scene whose root is `Main`, of the resources first and then the nodes."""
  head = f"[gd_scene load_steps={sum(s.startswith('[sub') for s in sections) + 1} format=2]"
  resources = [s for s in sections if s.startswith("[sub")]
  nodes = [s for s in sections if not s.startswith("[sub")]
  return "\n\n".join([head, *resources, node("Main", "Spatial"), *nodes]) + "\n"


def _body(name: str, kind: str, at: Triple, shape: int) -> tuple[str, str]:
  return (
    node(name, kind, ".", translation=vector(at)),
    node("Shape", "CollisionShape", name, shape=f"SubResource( {shape} )"),
  )


def _box(number: int, size: Triple) -> str:
  x, y, z = size
  return resource(number, "BoxShape", f"extents = {vector((x / 2, y / 2, z / 2))}")


def _spot(rng: random.Random) -> Triple:
  return (float(rng.randint(-8, 8)), float(rng.randint(0, 6)), float(rng.randint(-8, 8)))


def drop(rng: random.Random) -> Scene:
  """A ball that falls onto a platform and stays there."""
  ball, floor = rng.choice(_THINGS), rng.choice(_PLACES)
  x, y, z = at = _spot(rng)
  size = (float(rng.randint(4, 9)), rng.choice((0.5, 1.0, 2.0)), float(rng.randint(4, 9)))
  radius, height = rng.choice((0.25, 0.5, 0.75)), float(rng.randint(2, 4))
  top = y + size[1] / 2
  start, end = (x, top + height, z), (x, top + radius, z)
  text = (
    f"A StaticBody `{floor}` is centred at {at}; its shape is a box of {size} (x, y, z). A "
    f"RigidBody `{ball}`, a ball of radius {radius}, starts with its centre {height:g} m above the "
    f"middle of the upper face of `{floor}`, falls, and comes to rest on it."
  )
  answer = scene(
    _box(1, size),
    resource(2, "SphereShape", f"radius = {radius}"),
    *_body(floor, "StaticBody", at, 1),
    *_body(ball, "RigidBody", start, 2),
  )
  sights = (
    Sight(0, floor, "StaticBody", at),
    Sight(0, f"{floor}/Shape", "CollisionShape"),
    Sight(0, ball, "RigidBody", start),
    Sight(0, f"{ball}/Shape", "CollisionShape"),
    Sight(4 * FRAMES_A_SECOND, ball, "RigidBody", end, SETTLED),
  )
  return Scene(text + _SHAPES, answer, sights)


def tower(rng: random.Random) -> Scene:
  """Boxes that stand on each other."""
  floor, count = rng.choice(_PLACES), rng.randint(2, 4)
  names = rng.sample(_THINGS, count)
  x, y, z = at = _spot(rng)
  size, edge = (float(rng.randint(4, 9)), 1.0, float(rng.randint(4, 9))), rng.choice((1.0, 2.0))
  places = [(x, y + 0.5 + edge * (i + 0.5), z) for i in range(count)]
  listed = ", ".join(f"`{name}`" for name in names)
  text = (
    f"A StaticBody `{floor}` is centred at {at}; its shape is a box of {size} (x, y, z). On the "
    f"middle of its upper face stands a tower of {count} RigidBody nodes, from below: {listed}. "
    f"Each is a cube with edges of {edge:g} m and touches the one below. The tower keeps standing."
  )
  bodies = [_body(n, "RigidBody", p, 2) for n, p in zip(names, places, strict=True)]
  answer = scene(
    _box(1, size),
    _box(2, (edge, edge, edge)),
    *_body(floor, "StaticBody", at, 1),
    *(section for body in bodies for section in body),
  )
  sights = [Sight(0, floor, "StaticBody", at)]
  for frame, off in ((0, EXACT), (3 * FRAMES_A_SECOND, SETTLED)):
    sights += [
      Sight(frame, name, "RigidBody", place, off) for name, place in zip(names, places, strict=True)
    ]
  return Scene(text + _SHAPES, answer, tuple(sights))


def arm(rng: random.Random) -> Scene:
  """Nodes within nodes, one of them turned."""
  base, elbow, tip = rng.sample((*_THINGS, *_PLACES), 3)
  at, shift = _spot(rng), (float(rng.randint(1, 5)), float(rng.randint(0, 4)), 0.0)
  reach, degrees = (float(rng.randint(1, 5)), float(rng.randint(0, 3)), 0.0), rng.choice((90, 180))
  bend = tuple(a + b for a, b in zip(at, shift, strict=True))
  # A positive angle about y turns x to -z.
  turned = (0.0, reach[1], -reach[0]) if degrees == 90 else (-reach[0], reach[1], 0.0)
  end = tuple(a + b for a, b in zip(bend, turned, strict=True))
  text = (
    f"A Spatial `{base}` at {at}. Its child, a Spatial `{elbow}`, lies at {shift} relative to it "
    f"and is turned by +{degrees} degrees about the y axis. The child of `{elbow}`, a Position3D "
    f"`{tip}`, lies at {reach} relative to it."
  )
  answer = scene(
    node(base, "Spatial", ".", translation=vector(at)),
    node(
      elbow,
      "Spatial",
      base,
      translation=vector(shift),
      rotation_degrees=vector((0.0, degrees, 0.0)),
    ),
    node(tip, "Position3D", f"{base}/{elbow}", translation=vector(reach)),
  )
  sights = (
    Sight(0, base, "Spatial", at),
    Sight(0, f"{base}/{elbow}", "Spatial", (bend[0], bend[1], bend[2])),
    Sight(0, f"{base}/{elbow}/{tip}", "Position3D", (end[0], end[1], end[2])),
  )
  return Scene(text, answer, sights)


def lift(rng: random.Random) -> Scene:
  """A node that an animation moves from one place to another."""
  thing, seconds = rng.choice(_PLACES), rng.choice((1, 2, 3))
  start = _spot(rng)
  end = tuple(a + rng.choice((-1, 1)) * rng.randint(2, 6) for a in start)
  middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
  name = rng.choice(("glide", "rise", "shift", "travel"))
  text = (
    f"A Spatial `{thing}` starts at {start}. An AnimationPlayer `Player`, a child of the root, "
    f"starts by itself and plays an animation `{name}`, which moves `{thing}` evenly to {end} "
    f"within {seconds} s; there it stays."
  )
  keys = (
    f'tracks/0/keys = {{\n"times": PoolRealArray( 0, {seconds} ),\n'
    '"transitions": PoolRealArray( 1, 1 ),\n"update": 0,\n'
    f'"values": [ {vector(start)}, {vector((end[0], end[1], end[2]))} ]\n}}'
  )
  answer = scene(
    resource(
      1,
      "Animation",
      f"length = {seconds}.0",
      'tracks/0/type = "value"',
      f'tracks/0/path = NodePath("{thing}:translation")',
      "tracks/0/interp = 1",
      keys,
    ),
    node(thing, "Spatial", ".", translation=vector(start)),
    node(
      "Player",
      "AnimationPlayer",
      ".",
      autoplay=f'"{name}"',
      **{f"anims/{name}": "SubResource( 1 )"},
    ),
  )
  # A frame or two pass before a player begins.
  off = 0.05 * max(abs(a - b) for a, b in zip(start, end, strict=True)) / seconds + EXACT
  half, after = seconds * FRAMES_A_SECOND // 2, (seconds + 1) * FRAMES_A_SECOND
  sights = (
    Sight(0, thing, "Spatial", start, off),
    Sight(0, "Player", "AnimationPlayer"),
    Sight(half, thing, "Spatial", (middle[0], middle[1], middle[2]), off),
    Sight(after, thing, "Spatial", (end[0], end[1], end[2])),
  )
  return Scene(text, answer, sights)


_SHAPES = " The shape of each body is its child `Shape`, a CollisionShape."

FAMILIES: tuple[Callable[[random.Random], Scene], ...] = (drop, tower, arm, lift)
