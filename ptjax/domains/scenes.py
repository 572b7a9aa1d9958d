"""Scenes of the Godot engine: a scene in words, to be written as a file that the engine runs.

The engine runs it without a display in a sandbox, and a script of ours says where the nodes are at
some frames. A scene is data alone (`scene_parts/allowed.py`): it cannot touch what is said of it.
"""

import importlib.resources
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.domains import code_grading, scene_parts
from ptjax.domains.domain import Domain
from ptjax.domains.scene_parts.allowed import fault_of
from ptjax.domains.scene_parts.families import FAMILIES, FRAMES_A_SECOND, Sight
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure
from sandbox_runner import Limits, Pool, Request

IMAGE = "modeling3d"
LIMITS = Limits(wall_s=20.0, cpu_s=20.0, memory_mb=512, pids=64, disk_mb=64)

_PROJECT = b'config_version=4\n[application]\nconfig/name="scene"\n'
_ASKED = (
  "Write a scene of Godot 3 (a .tscn file, format=2). Its root is a Spatial `Main`; all else is "
  "below it.\n\n{text}\n\nPlaces are (x, y, z) in metres. Use no scripts and no other files. Reply "
  "with the file alone, in one fenced block."
)

# Class and place of each node by path, a mapping for each frame that was looked at.
Seen = Sequence[Mapping[str, tuple[str, Sequence[float] | None]]]


async def watch(scene: str, frames: Sequence[int], pool: Pool) -> Seen | None:
  """Runs a scene of data alone; what is seen at each frame, None where it is no scene.

  Raises InfraFailure for a lost sandbox.
  """
  token = secrets.token_hex(16)
  script = importlib.resources.files(scene_parts).joinpath("watch.gd").read_text()
  script = script.replace("FRAMES = []", f"FRAMES = {list(frames)}")
  script = script.replace('TOKEN = ""', f'TOKEN = "{token}"')
  files = {
    "project.godot": _PROJECT,
    "watch.gd": script.encode(),
    "scene.tscn": scene.encode(errors="replace"),
  }
  argv = ("godot3-server", "--path", ".", "--fixed-fps", str(FRAMES_A_SECOND), "-s", "watch.gd")
  result = await pool.run(Request(argv, files, limits=LIMITS))
  if result.is_infra_failure:
    raise InfraFailure(f"sandbox: {result.outcome} {result.detail}".rstrip())
  lines = [line for line in result.stdout.decode(errors="replace").splitlines() if token in line]
  seen = json.loads(lines[0].partition(token)[2]) if lines else []
  return seen or None


def share_seen(sights: Sequence[Sight], frames: Sequence[int], seen: Seen) -> float:
  """The share of the sights that are there, in [0, 1]."""
  return sum(_is_there(sight, seen[frames.index(sight.frame)]) for sight in sights) / len(sights)


def _is_there(sight: Sight, nodes: Mapping[str, Any]) -> bool:
  kind, place = nodes.get(sight.path, ("", None))
  if kind != sight.kind:
    return False
  if sight.place is None:
    return True
  return place is not None and all(
    abs(a - b) <= sight.off for a, b in zip(place, sight.place, strict=True)
  )


async def grade_scene(task: Task, response: str, services: Services) -> float:
  """The share of what the task wants seen; 0 for a text that is no scene of data alone."""
  pool = services.pool(IMAGE)
  if pool is None:
    raise ValueError(f"domain {task.domain} needs sandboxes of image {IMAGE}; give Services a pool")
  scene = code_grading.extract_code(response)
  if fault_of(scene) is not None:
    return 0.0
  sights = task.data["sights"]
  frames = sorted({sight.frame for sight in sights})
  seen = await watch(scene, frames, pool)
  return 0.0 if seen is None else share_seen(sights, frames, seen)


def make_task(seed: int, split: Split) -> Task:
  """Draws a scene of one of the families."""

  def make(rng: random.Random):
    return rng.choice(FAMILIES)(rng)

  drawn = draw(make, lambda scene: scene.text, seed, split)
  content = _ASKED.format(text=drawn.text)
  data = {"sights": drawn.sights, "answer": drawn.answer}
  return Task("scenes/godot", seed, split, ({"role": "user", "content": content},), data)


def oracle(task: Task) -> str:
  """The scene that the specification was made from."""
  return f"```\n{task.data['answer']}```"


def build() -> Domain:
  """Makes the domain."""
  return Domain(
    name="scenes/godot",
    family="3d",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", code_grading.grade_fence)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("scene", grade_scene)),)),
    ),
    passed=lambda rewards: rewards["domain/scene"] == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    sandboxed=True,
    image=IMAGE,
  )


_EMPTY = '[gd_scene format=2]\n\n[node name="Main" type="Spatial"]\n'
ATTACKS: tuple[str, ...] = (
  _EMPTY,
  _EMPTY.replace("Spatial", "Node"),
  _EMPTY + '[node name="Orb" type="Node" parent="."]\nscript = ExtResource( 1 )\n',
  _EMPTY.replace(
    "[node", '[sub_resource type="GDScript" id=1]\nscript/source = "extends Node"\n\n[node'
  ),
  _EMPTY + 'process_priority = Object(GDScript,"script/source":"extends Node")\n',
  _EMPTY + '[connection signal="ready" from="." to="." method="queue_free"]\n',
)

DOMAINS = {"scenes/godot": build}
