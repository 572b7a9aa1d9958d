import dataclasses
import math
import re

import ml_collections
import pytest
from config_toys import CriticToy, DomainToy, OptimToy, Toy

from ptjax.core.config import (
  ConfigError,
  config_hash,
  from_config_dict,
  from_json,
  load_config_file,
  load_gin,
  mapping_overrides,
  parse_overrides,
  to_config_dict,
  to_json,
  with_overrides,
)
from ptjax.core.config_build import build, plain

FULL = Toy(
  seed=3,
  tag="x",
  mesh=(2, 4),
  spans=((1, 2), (3, 4)),
  weights={"code": 2.0},
  critic=CriticToy(width=4),
  domains=(DomainToy("math", params={"terms": 2, "op": "+"}),),
)


def overridden(*args: str) -> Toy:
  return with_overrides(Toy(), parse_overrides(args))


@pytest.mark.parametrize("toy", [Toy(), FULL])
def test_round_trips_give_an_equal_object(toy):
  assert from_config_dict(Toy, to_config_dict(toy)) == toy
  assert from_json(Toy, to_json(toy)) == toy
  assert build(Toy, plain(toy)) == toy


@pytest.mark.parametrize(
  ("arg", "field", "expected"),
  [
    ("--config.seed=-3", "seed", -3),
    ("--config.name=a=b", "name", "a=b"),
    ("--config.name=none", "name", "none"),
    ("--config.name=", "name", ""),
    ("--config.tag=none", "tag", None),
    ("--config.tag='none'", "tag", "none"),
    ("--config.deterministic=true", "deterministic", True),
    ("--config.deterministic=False", "deterministic", False),
    ("--config.loss=ppo", "loss", "ppo"),
    ("--config.temperature=2", "temperature", 2.0),
    ("--config.temperature=1e-3", "temperature", 1e-3),
    ("--config.temperature=inf", "temperature", math.inf),
    ("--config.mesh=1,2", "mesh", (1, 2)),
    ("--config.mesh=(1, 2)", "mesh", (1, 2)),
    ("--config.mesh=[1,2,]", "mesh", (1, 2)),
    ("--config.mesh.1=8", "mesh", (1, 8)),
    ("--config.stop=", "stop", ()),
    ("--config.stop=()", "stop", ()),
    ("--config.stop=a", "stop", ("a",)),
    ("--config.stop=a,b", "stop", ("a", "b")),
    ("--config.spans=(1,2),(3,4)", "spans", ((1, 2), (3, 4))),
    ("--config.spans=((1,2),)", "spans", ((1, 2),)),
    ("--config.weights.code=2", "weights", {"code": 2.0}),
    ("--config.optim.lr=1", "optim", OptimToy(lr=1.0)),
    ("--config.optim.clip=none", "optim", OptimToy(clip=None)),
    ("--config.critic.width=2", "critic", CriticToy(width=2, optim=OptimToy(lr=1e-4))),
    ("--config.critic.optim.warmup=1", "critic", CriticToy(optim=OptimToy(lr=1e-4, warmup=1))),
  ],
)
def test_override_reads_the_text_by_the_type_of_the_field(arg, field, expected):
  value = getattr(overridden(arg), field)
  assert value == expected
  assert type(value) is type(expected)


def test_override_of_tuple_elements_and_open_mappings():
  toy = overridden(
    "--config.domains.0.weight=2",
    "--config.domains.1.params.terms=3",
    "--config.domains.1.params.op=+",
    "--config.domains.1.params.carry=true",
    "--config.domains.1.params.p=0.5",
  )
  assert toy.domains == (
    DomainToy("code", weight=2.0),
    DomainToy("arithmetic", weight=3.0, params={"terms": 3, "op": "+", "carry": True, "p": 0.5}),
  )
  assert overridden("--config.seed=1", "--config.seed=2").seed == 2, "the last one wins"


def test_mapping_overrides_keep_their_types():
  changes = {"optim.lr": 1, "mesh": (2, 2), "domains.0": DomainToy("sql"), "tag": "3"}
  toy = with_overrides(Toy(), mapping_overrides(changes))
  assert (toy.optim.lr, toy.mesh, toy.domains[0].name, toy.tag) == (1.0, (2, 2), "sql", "3")
  with pytest.raises(ConfigError, match=r"config\.seed='3': expected int, got str"):
    with_overrides(Toy(), mapping_overrides({"seed": "3"}))


BAD_OVERRIDES = {
  "--config.seeed=1": "config.seeed=1: unknown key; did you mean config.seed?",
  "--config.optim.lrr=1": "config.optim.lrr=1: unknown key; did you mean config.optim.lr?",
  "--config.zzz=1": "config.zzz=1: unknown key; known: batch, critic, ",
  "--config.domains.0.wieght=2": "config.domains.0.wieght=2: unknown key; did you mean"
  " config.domains.0.weight?",
  "--config.seed=1.5": "config.seed=1.5: expected int; write for example --config.seed=1",
  "--config.seed=none": "config.seed=none: expected int; ",
  "--config.deterministic=1": "config.deterministic=1: expected bool; write for example"
  " --config.deterministic=true",
  "--config.optim.clip=x": "config.optim.clip=x: expected float or none; write for example"
  " --config.optim.clip=0.1",
  "--config.optim.lr=nan": "config.optim.lr=nan: not a number; ",
  "--config.loss=pp": "config.loss=pp: expected one of 'grpo', 'ppo'; ",
  "--config.mesh=1,2,3": "config.mesh=1,2,3: expected tuple[int, int]; give 2 elements, not 3",
  "--config.spans=((1,x),)": "config.spans.0.1=x: expected int; ",
  "--config.weights=3": "config.weights=3: expected a mapping of float; set its keys one by one",
  "--config.optim=3": "config.optim=3: expected OptimToy; set its keys one by one",
  "--config.domains.2.name=x": "config.domains.2: config.domains has 2 elements; use an index"
  " from 0 to 1",
  "--config.domains.x=1": "config.domains.x: config.domains has 2 elements; ",
  "--config.stop.0=x": "config.stop.0: config.stop is empty; ",
  "--config.seed.x=1": "config.seed.x: config.seed is 0 and has no keys; ",
  "--config.batch=7": "config: batch 7 not divisible by data axis 4; try 4",
  "--config.seed": "--config.seed: no key or no value; write --config.seed=VALUE",
  "--config.=1": "--config.=1: no key or no value; ",
  "--seed=1": "unknown argument --seed=1; ",
}


@pytest.mark.parametrize("arg", BAD_OVERRIDES)
def test_bad_override_names_key_value_and_fix(arg):
  with pytest.raises(ConfigError) as error:
    overridden(arg)
  assert str(error.value).startswith(BAD_OVERRIDES[arg])
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("value", "ok"), [(1, True), (1.0, True), (True, False), ("1", False), (None, False), ([], False)]
)
def test_a_float_field_takes_numbers_only(value, ok):
  if ok:
    assert type(build(Toy, {"temperature": value}).temperature) is float
  else:
    with pytest.raises(ConfigError, match=r"^config\.temperature="):
      build(Toy, {"temperature": value})


@pytest.mark.parametrize("tree", [{"seed": True}, {"deterministic": 1}, {"name": 1}, {"seed": 1.0}])
def test_scalars_are_not_converted_silently(tree):
  with pytest.raises(ConfigError, match=r"expected \w+, got"):
    build(Toy, tree)


def test_a_value_without_default_is_asked_for():
  with pytest.raises(ConfigError, match=r"config\.name: no value; set --config\.name=text"):
    build(DomainToy, {"weight": 1.0})


def test_an_annotation_outside_the_supported_set_is_a_programming_error():
  @dataclasses.dataclass(frozen=True)
  class Odd:
    callback: type = int

  with pytest.raises(TypeError, match=r"config\.callback: a config field cannot be annotated"):
    build(Odd, {})


def test_config_dict_locks_keys_but_not_mappings():
  config_dict = to_config_dict(Toy())
  config_dict.domains[0].params.terms = 2
  config_dict.weights.code = 1
  config_dict.critic = to_config_dict(CriticToy(width=2))
  with pytest.raises(AttributeError):
    config_dict.optim.lrr = 1
  with pytest.raises(AttributeError):
    config_dict.domains[0].wieght = 1
  toy = from_config_dict(Toy, config_dict)
  assert toy.domains[0].params == {"terms": 2}
  assert toy.weights == {"code": 1.0}
  assert toy.critic == CriticToy(width=2)


def test_field_references_are_resolved():
  config_dict = to_config_dict(Toy())
  config_dict.batch = ml_collections.FieldReference(4) * 4
  assert from_config_dict(Toy, config_dict).batch == 16


def test_hash_depends_on_values_alone():
  @dataclasses.dataclass(frozen=True)
  class Reordered:
    clip: float | None = 1
    warmup: int = 10
    lr: float = 1e-3

  assert config_hash(Reordered()) == config_hash(OptimToy())
  assert config_hash(Toy()) == config_hash(from_json(Toy, to_json(Toy())))
  assert config_hash(Toy()) != config_hash(Toy(seed=1))
  # printf '{"clip":1.0,"lr":0.001,"warmup":10}' | sha256sum
  expected = "35fe5f08"
  assert config_hash(OptimToy())[:8] == expected
  assert re.fullmatch("[0-9a-f]{64}", config_hash(Toy()))


def test_json_that_is_broken_or_from_elsewhere():
  with pytest.raises(ConfigError, match="config is not JSON"):
    from_json(Toy, to_json(Toy())[:-5])
  with pytest.raises(ConfigError, match=r"config\.lr=1: unknown key"):
    from_json(Toy, '{"lr": 1}')
  assert from_json(Toy, '{"seed": 4}') == Toy(seed=4)


# Front ends.

CONFIG_FILE = """
from config_toys import DomainToy, Toy
from ptjax.core.config import to_config_dict

def get_config(seed="0"):
  config = to_config_dict(Toy(seed=int(seed)))
  config.optim.lr = 0.5
  config.domains = (to_config_dict(DomainToy("code", weight=2)), DomainToy("math"))
  return config
"""

GIN_FILE = """
lr = 0.5
OptimToy.lr = %lr
Toy.domains = (@code/DomainToy(), @DomainToy())
DomainToy.name = "math"
code/DomainToy.name = "code"
code/DomainToy.weight = 2
"""


def test_both_front_ends_give_the_same_object(tmp_path):
  (tmp_path / "c.py").write_text(CONFIG_FILE)
  (tmp_path / "c.gin").write_text(GIN_FILE)
  overrides = parse_overrides(["--config.domains.1.weight=4"])
  from_python = load_config_file(f"{tmp_path}/c.py:7", Toy, overrides)
  from_gin = load_gin(Toy, [tmp_path / "c.gin"], ["Toy.seed = 7"], overrides)
  assert from_python == from_gin
  assert from_python == Toy(
    seed=7,
    optim=OptimToy(lr=0.5),
    domains=(DomainToy("code", weight=2.0), DomainToy("math", weight=4.0)),
  )
  assert config_hash(from_python) == config_hash(from_gin)


BAD_FILES = {
  "x = 1": "{file} has no get_config(); define it",
  "def get_config(arg): pass": "{file}: get_config(arg) does not fit {file}: missing",
  "def get_config(): return 3": "{file}: get_config() returned int, not a ConfigDict; return"
  " to_config_dict(Toy(...))",
  "def get_config(:": "{file}:1: SyntaxError: ",
  "import nothing_here": "{file}:1: ModuleNotFoundError: ",
  "\ndef get_config():\n  return undefined": "{file}:3: NameError: name 'undefined' is not",
  "from config_toys import Toy\ndef get_config():\n  return Toy(batch=7)": "{file}:3: ValueError:"
  " batch 7 not divisible by data axis 4; try 4",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_config_file(tmp_path, text):
  file = tmp_path / "bad.py"
  file.write_text(text)
  with pytest.raises(ConfigError) as error:
    load_config_file(file, Toy)
  assert str(error.value).startswith(BAD_FILES[text].format(file=file))
  assert "\n" not in str(error.value)


def test_missing_config_file_suggests_a_sibling(tmp_path):
  (tmp_path / "demo.py").write_text(CONFIG_FILE)
  with pytest.raises(ConfigError, match=r"demo_\.py not found; did you mean \S+/demo\.py\?"):
    load_config_file(tmp_path / "demo_.py", Toy)
  with pytest.raises(ConfigError, match=r"demo\.py:6: ValueError: invalid literal .* '1:2'"):
    load_config_file(f"{tmp_path}/demo.py:1:2", Toy)


@pytest.mark.parametrize(
  ("bindings", "field", "expected"),
  [
    (["Toy.stop = ['a']"], "stop", ("a",)),
    (["OptimToy.lr = 2"], "optim", OptimToy(lr=2.0)),
    (["OptimToy.lr = 2"], "critic", None),
    (["CriticToy.width = 2"], "critic", CriticToy(width=2)),
    (
      ["CriticToy.width = 2", "OptimToy.lr = 2", "critic/optim/OptimToy.warmup = 1"],
      "critic",
      CriticToy(width=2, optim=OptimToy(lr=2.0, warmup=1)),
    ),
    (["Toy.critic = @CriticToy()"], "critic", CriticToy()),
    (["Toy.weights = {'code': 1}"], "weights", {"code": 1.0}),
    (["config_toys.Toy.seed = 1"], "seed", 1),
  ],
)
def test_gin_composes_nested_configs_without_references(bindings, field, expected):
  assert getattr(load_gin(Toy, [], bindings), field) == expected


BAD_BINDINGS = {
  "Toy.seeed = 1": "config.seeed=1: unknown key; did you mean config.seed?",
  "optim/OptimToy.lrr = 1": "config.optim.lrr=1: unknown key; did you mean config.optim.lr?",
  "Toy.seed = '1'": "config.seed='1': expected int, got str; ",
  "Toy.batch = 7": "config: batch 7 not divisible by data axis 4; try 4",
  "Tox.seed = 1": "gin: no config class Tox; did you mean Toy?",
  "critc/OptimToy.lr = 1": "gin: binding critc/OptimToy.lr is used by no part of the config; ",
  "DomainToy.weight = 1": "gin: binding DomainToy.weight is used by no part of the config; ",
  "Toy.seed = %missing": "gin: macro %missing has no value; add a line missing = VALUE",
  "Toy.critic = @CriticToy": "gin: Toy.critic is a class; write its reference with ()",
  "Toy.seed =": "gin: Unable to parse value.",
  "import nothing_here": "gin: No module named 'nothing_here'",
}


@pytest.mark.parametrize("binding", BAD_BINDINGS)
def test_bad_gin_binding(binding):
  with pytest.raises(ConfigError) as error:
    load_gin(Toy, [], [binding])
  assert str(error.value).startswith(BAD_BINDINGS[binding])
  assert "\n" not in str(error.value)


def test_gin_leaves_nothing_behind(tmp_path):
  assert load_gin(Toy, [], ["Toy.seed = 5"]).seed == 5
  assert load_gin(Toy, [], []) == Toy()
  with pytest.raises(ConfigError, match=r"gin file \S+ not found"):
    load_gin(Toy, [tmp_path / "no.gin"])
