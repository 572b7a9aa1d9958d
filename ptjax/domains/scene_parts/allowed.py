"""What a scene may hold: data alone, so that nothing of it runs where it is watched."""

import re

MOST_CHARACTERS = 32_768
NODES = frozenset(
  (
    "AnimationPlayer",
    "Area",
    "Camera",
    "CollisionShape",
    "DirectionalLight",
    "MeshInstance",
    "Node",
    "OmniLight",
    "Position3D",
    "RigidBody",
    "Spatial",
    "StaticBody",
  )
)
RESOURCES = frozenset(
  (
    "Animation",
    "BoxShape",
    "CapsuleShape",
    "CubeMesh",
    "CylinderMesh",
    "CylinderShape",
    "PhysicsMaterial",
    "SphereMesh",
    "SphereShape",
    "SpatialMaterial",
  )
)
_KINDS = {"gd_scene": frozenset[str](), "node": NODES, "sub_resource": RESOURCES}
_SECTION = re.compile(r"^\[([^\]]*)\]?", re.MULTILINE)
_TYPE = re.compile(r'\btype\s*=\s*"([^"]*)"')
# What makes an object, loads a file, calls a method or is a program.
_ACTIVE = re.compile(
  r"\b(Object|Resource|ExtResource|InputEvent\w*)\s*\(|\bscript\b|\binstance\w*\s*=|\"method\"|res://"
  r"|user://"
)


def fault_of(scene: str) -> str | None:
  """Why a text is no scene of data alone; None where it is one.

  A scene consists of `[gd_scene]`, `[sub_resource]` and `[node]` sections of the types above.
  """
  if len(scene) > MOST_CHARACTERS:
    return f"{len(scene)} characters; up to {MOST_CHARACTERS} are read"
  if active := _ACTIVE.search(scene):
    return f"{active.group()!r} is not data"
  sections = _SECTION.findall(scene)
  if not sections or sections[0].split()[:1] != ["gd_scene"]:
    return "it does not begin with [gd_scene]"
  for section in sections:
    name = section.split()[0] if section.split() else ""
    if name not in _KINDS:
      return f"a section [{name}]"
    kind = _TYPE.search(section)
    if _KINDS[name] and (kind is None or kind.group(1) not in _KINDS[name]):
      return f"a {name} of the type {kind.group(1) if kind else 'of an instance'}"
  return None
