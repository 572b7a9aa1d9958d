"""Typed configuration: frozen dataclasses are the truth, front ends only fill them.

  Python file   `load_config_file`: `get_config()` returns `to_config_dict(Experiment(...))`
  gin           `load_gin`: every dataclass under the root is a gin configurable
  command line  `parse_overrides`: `--config.rl.kl_coef=0.01`, `--config.domains.0.weight=2`
  workdir       `to_json`, `from_json`, `config_hash`

All of them end in `config_build.build`, which checks keys, types and values; a
mistake raises `ConfigError`, one line naming the key path, the value and the fix.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ml_collections

from ptjax.core.config_build import ConfigError, Text, build, one_line, plain
from ptjax.core.config_files import call_in_file
from ptjax.core.config_gin import compose_gin

__all__ = [
  "ConfigError",
  "Override",
  "call_in_file",
  "config_hash",
  "from_config_dict",
  "from_json",
  "load_config_file",
  "load_gin",
  "mapping_overrides",
  "one_line",
  "parse_overrides",
  "to_config_dict",
  "to_json",
  "with_overrides",
]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Override:
  """One replaced value: `path` below the root, and the value, `Text` from the command line."""

  path: tuple[str, ...]
  value: Any


def parse_overrides(args: Sequence[str]) -> tuple[Override, ...]:
  """Reads `--config.a.b=c` arguments; the field's type decides later how `c` reads.

  Text forms: `true`/`false`; `none`; numbers; `1,2,3`, `(1,2)` or `[1,2]` for tuples;
  a string as it stands, or in quotes where it would otherwise read as `none`.

  Raises:
    ConfigError: an argument of another form.
  """
  overrides = []
  for arg in args:
    key, equals, text = arg.partition("=")
    path = tuple(key.removeprefix("--config.").split("."))
    if not key.startswith("--config."):
      raise ConfigError(f"unknown argument {arg}; overrides are written --config.KEY=VALUE")
    if not equals or not all(path):
      raise ConfigError(f"{arg}: no key or no value; write {key.rstrip('.')}=VALUE")
    overrides.append(Override(path, Text(text)))
  return tuple(overrides)


def mapping_overrides(values: Mapping[str, Any]) -> tuple[Override, ...]:
  """Overrides from `{"rl.kl_coef": 0.01}`, the form that a sweep yields."""
  return tuple(Override(tuple(key.split(".")), plain(value)) for key, value in values.items())


def with_overrides(config: T, overrides: Sequence[Override]) -> T:
  """Returns `config` with some values replaced, checked anew."""
  return build(type(config), _replaced(plain(config), overrides))


def to_config_dict(config: Any) -> ml_collections.ConfigDict:
  """Converts a dataclass to a ConfigDict whose keys are locked, for `get_config()`.

  Nested dataclasses become nested ConfigDicts, also within tuples; mappings become
  ConfigDicts that take new keys. Types are checked on the way back, not here, since
  ConfigDict knows values and not annotations.
  """
  return _to_config_dict(build(type(config), config))


def from_config_dict(
  cls: type[T], config_dict: ml_collections.ConfigDict, overrides: Sequence[Override] = ()
) -> T:
  """Builds the dataclass `cls` from a ConfigDict, strictly.

  Raises:
    ConfigError: an unknown key, a wrong type, an impossible value.
  """
  return build(cls, _replaced(plain(config_dict), overrides))


def load_config_file(path: str | Path, cls: type[T], overrides: Sequence[Override] = ()) -> T:
  """Runs `get_config()` of a Python file, or `get_config(arg)` for `file.py:arg`.

  Raises:
    ConfigError: whatever `call_in_file` or `from_config_dict` finds.
  """
  file, colon, arg = str(path).partition(":")
  config_dict = call_in_file(file, "get_config", (arg,) if colon else ())
  if not isinstance(config_dict, ml_collections.ConfigDict):
    raise ConfigError(
      f"{file}: get_config() returned {type(config_dict).__name__}, not a ConfigDict;"
      f" return to_config_dict({cls.__name__}(...))"
    )
  return from_config_dict(cls, config_dict, overrides)


def load_gin(
  cls: type[T],
  gin_files: Sequence[str | Path],
  gin_bindings: Sequence[str] = (),
  overrides: Sequence[Override] = (),
) -> T:
  """Builds `cls` from gin files and bindings; see `config_gin.compose_gin` for the scopes.

  Raises:
    ConfigError: a gin error, a binding that nothing uses, or whatever `build` finds.
  """
  config = build(cls, compose_gin(cls, [str(f) for f in gin_files], gin_bindings))
  return with_overrides(config, overrides) if overrides else config


def to_json(config: Any) -> str:
  """Serialises a config for its workdir; `from_json` reads it back to an equal object."""
  return json.dumps(plain(build(type(config), config)), indent=2) + "\n"


def from_json(cls: type[T], text: str) -> T:
  """Reads `to_json`; keys that this version has added take their defaults.

  Raises:
    ConfigError: not JSON, or whatever `build` finds.
  """
  try:
    tree = json.loads(text)
  except json.JSONDecodeError as error:
    raise ConfigError(f"config is not JSON: {error}; start from a fresh workdir") from error
  return build(cls, tree)


def config_hash(config: Any) -> str:
  """sha256 (hex) of the canonical JSON: sorted keys, floats as floats, no spaces."""
  tree = plain(build(type(config), config))
  text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()


def _to_config_dict(value: Any) -> Any:
  if dataclasses.is_dataclass(value):
    items = {f.name: _to_config_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    node = ml_collections.ConfigDict(items, type_safe=False).lock()
    for name in items:  # lock() locks the children too, and a mapping takes new keys
      if isinstance(getattr(value, name), Mapping):
        node[name].unlock()
    return node
  if isinstance(value, Mapping):
    items = {key: _to_config_dict(item) for key, item in value.items()}
    return ml_collections.ConfigDict(items, type_safe=False)
  if isinstance(value, tuple):
    return tuple(_to_config_dict(item) for item in value)
  return value


def _replaced(tree: Any, overrides: Sequence[Override]) -> Any:
  """Sets the overrides in a plain tree, in place; unknown keys are left for `build` to find."""
  for override in overrides:
    node, walked = tree, "config"
    *parents, last = override.path
    for name in parents:
      key = _checked_key(node, name, walked)
      if isinstance(node, dict) and node.get(key) is None:
        node[key] = {}  # a nested config that is none by default
      node, walked = node[key], f"{walked}.{name}"
    node[_checked_key(node, last, walked)] = override.value
  return tree


def _checked_key(node: Any, key: str, path: str) -> str | int:
  if isinstance(node, dict):
    return key
  if not isinstance(node, list):
    raise ConfigError(f"{path}.{key}: {path} is {node!r} and has no keys; write --{path}=VALUE")
  if not key.isdecimal() or int(key) >= len(node):
    raise ConfigError(
      f"{path}.{key}: {path} has {len(node)} elements; use an index from 0 to {len(node) - 1}"
      if node
      else f"{path}.{key}: {path} is empty; add elements in the config file"
    )
  return int(key)
