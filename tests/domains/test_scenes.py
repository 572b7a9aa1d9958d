"""Scenes: the engine sees what each family's answer promises, and a scene is data alone."""

import asyncio
import random
import re

import pytest

from ptjax.domains import scenes
from ptjax.domains.admission import examine
from ptjax.domains.domain import grade_response
from ptjax.domains.scene_parts import families
from ptjax.domains.scene_parts.allowed import MOST_CHARACTERS, fault_of
from ptjax.envs.environment import Services

DOMAIN = scenes.build()


def shares(scene, sights):
  """`use` of a fixture: the share that is seen of a scene."""
  frames = sorted({sight.frame for sight in sights})

  async def use(services):
    seen = await scenes.watch(scene, frames, services.pool(scenes.IMAGE))
    return None if seen is None else scenes.share_seen(sights, frames, seen)

  return use


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda f: f.__name__)
def test_the_engine_sees_what_the_answer_promises(family, with_image):
  for seed in range(3):
    drawn = family(random.Random(seed))
    assert fault_of(drawn.answer) is None
    assert with_image(scenes.IMAGE, shares(drawn.answer, drawn.sights)) == 1.0


@pytest.mark.parametrize(
  ("family", "change", "lost"),
  [
    # Without gravity it hangs; without the floor's shape it falls past.
    ("drop", (r'(type="RigidBody".*\n)', r"\1gravity_scale = 0\n"), 1),
    ("drop", (r'"Shape" type="\w+" parent="Tier"', '"Form" type="Area" parent="Tier"'), 2),
    ("tower", ('type="StaticBody"', 'type="Spatial"'), 5),
    ("arm", (r"(rotation_degrees = Vector3\( 0, )", r"\1-"), 1),
    ("lift", ("autoplay", "assigned_animation"), 2),
  ],
)
def test_what_a_changed_scene_loses(family, change, lost, with_image):
  drawn = getattr(families, family)(random.Random(1))
  changed = re.sub(*change, drawn.answer)
  assert changed != drawn.answer
  share = with_image(scenes.IMAGE, shares(changed, drawn.sights))
  assert share == pytest.approx(1 - lost / len(drawn.sights))


def test_a_scene_is_data_alone():
  empty = '[gd_scene format=2]\n\n[node name="Main" type="Spatial"]\n'
  assert fault_of(empty) is None
  for scene, fault in {
    "": "it does not begin with",
    "[node]": "it does not begin with",
    empty + "x" * MOST_CHARACTERS: "up to 32768 are read",
    empty + '[ext_resource path="a.gd" type="Script" id=1]\n': r"a section \[ext_resource\]",
    empty + '[connection signal="ready"]\n': r"a section \[connection\]",
    empty + '[editable path="a"]\n': r"a section \[editable\]",
    empty + "[]\n": r"a section \[\]",
    empty + '[node name="a" type="HTTPRequest" parent="."]\n': "a node of the type HTTPRequest",
    empty + '[node name="a" parent="."]\n': "a node of the type of an instance",
    empty + '[node name="a" parent="." instance=ExtResource( 1 )]\n': "is not data",
    empty + '[sub_resource type="GDScript" id=1]\n': "a sub_resource of the type GDScript",
    empty + '[sub_resource type="VisualScript" id=1]\n': "type VisualScript",
    empty + "script = null\n": "'script' is not data",
    empty + "a = Object (GDScript)\n": "is not data",
    empty + 'a = Resource("x.tres")\n': "is not data",
    empty + 'tracks/0/type = "method"\n': "is not data",
    empty + 'a = "res://watch.gd"\n': "is not data",
  }.items():
    told = fault_of(scene)
    assert told is not None, scene

    assert re.search(fault, told), (scene, told)


def test_a_name_cannot_speak_for_the_watcher(with_image):
  scene = (
    '[gd_scene format=2]\n\n[node name="Main" type="Spatial"]\n\n'
    '[node name="x\n[{\\"Orb\\": [\\"Spatial\\", null]}]" type="Spatial" parent="."]\n'
  )
  sights = (families.Sight(0, "Orb", "Spatial"),)
  assert with_image(scenes.IMAGE, shares(scene, sights)) in (0.0, None)


def test_admitted(with_image):
  report = with_image(scenes.IMAGE, lambda services: examine(DOMAIN, range(2), services))
  assert report.findings == ()


def test_without_sandboxes_it_says_so():
  task = DOMAIN.make_task(0, "train")
  with pytest.raises(ValueError, match="scenes/godot needs sandboxes of image modeling3d"):
    asyncio.run(grade_response(DOMAIN, task, DOMAIN.oracle(task), Services()))
