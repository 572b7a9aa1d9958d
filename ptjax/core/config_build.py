"""Plain trees of dicts, lists and scalars to typed dataclasses and back, strictly.

Every front end (Python file, gin, JSON, command line) ends in `build`, so each
error is found once, in one place, and names the full key path, for example
`config.rl.kl_coef='x': expected float; ...`.

Supported annotations: bool, int, float, str, Literal, None-unions, tuple[X, ...],
tuple[X, Y], Mapping[str, X], and nested frozen dataclasses of these.
"""

import collections.abc
import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import ml_collections

T = TypeVar("T")


class ConfigError(ValueError):
  """A mistake in a configuration: one line with the key path, the value and the fix."""


class Text(str):
  """A value as typed on the command line; its type is that of the field it lands in."""

  __slots__ = ()


def one_line(message: object) -> str:
  """Joins the lines of a message, so that an error stays one line on the terminal."""
  return " ".join(str(message).split())


def plain(value: Any) -> Any:
  """Copies a dataclass, ConfigDict, mapping or sequence into fresh dicts and lists."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
  if isinstance(value, Mapping | ml_collections.ConfigDict):
    return {key: plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [plain(item) for item in value]
  return value


def build(cls: type[T], tree: Any, path: str = "config", base: T | None = None) -> T:
  """Builds `cls` from a tree of dicts; keys that the tree leaves out keep their defaults.

  Args:
    cls: a frozen dataclass.
    tree: dict by field name, or an instance of `cls` (checked again).
    path: key path of this node, for messages.
    base: instance whose values stand in for keys left out, before the defaults of
      the class: a nested default such as `optim: Optim = Optim(lr=1e-3)`.

  Raises:
    ConfigError: an unknown or missing key, a wrong type, an impossible value.
  """
  if dataclasses.is_dataclass(tree) and isinstance(tree, cls):
    tree = plain(tree)
  if not isinstance(tree, Mapping):
    raise _mismatch(tree, cls, path, f"set its keys one by one: --{path}.KEY=VALUE")
  fields = {f.name: f for f in dataclasses.fields(cast(Any, cls)) if f.init}
  for key, value in tree.items():
    if key not in fields:
      fix = suggest(str(key), fields, prefix=f"{path}.")
      raise ConfigError(f"{path}.{key}={_show(value)}: unknown key; {fix}")
  hints = _hints(cls)
  kwargs = {}
  for name, field in fields.items():
    default = _default(field, base)
    value = tree.get(name, default)
    if value is dataclasses.MISSING:
      raise ConfigError(f"{path}.{name}: no value; set --{path}.{name}={_example(hints[name])}")
    kwargs[name] = _convert(value, hints[name], f"{path}.{name}", default)
  try:
    return cls(**kwargs)
  except ValueError as error:  # from __post_init__, which names the value and the fix
    raise ConfigError(f"{path}: {one_line(error)}") from error


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
  """Says which known name was probably meant, or lists them all."""
  known = sorted(known)
  close = difflib.get_close_matches(name, known, n=1)
  if close:
    return f"did you mean {prefix}{close[0]}?"
  return f"known: {', '.join(known) or 'none'}"


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
  return typing.get_type_hints(cls)


def _default(field: dataclasses.Field, base: Any) -> Any:
  if base is not None:
    return getattr(base, field.name)
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  return field.default


def _convert(value: Any, hint: Any, path: str, default: Any = None) -> Any:
  """Checks `value` against an annotation, reading it first where it is `Text`."""
  if dataclasses.is_dataclass(hint):
    return build(hint, value, path, default if isinstance(default, hint) else None)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return _convert_union(value, hint, path, default)
  if origin is typing.Literal:
    for choice in args:
      typed = str(choice) if isinstance(value, Text) else choice
      if type(typed) is type(_unwrap(value)) and typed == value:
        return choice
    raise _mismatch(value, hint, path)
  if origin is tuple:
    return _convert_tuple(value, hint, path)
  if origin is collections.abc.Mapping:
    return _convert_mapping(value, hint, path)
  if hint in _SCALARS:
    return _convert_scalar(value, hint, path)
  raise TypeError(
    f"{path}: a config field cannot be annotated {hint!r}; see ptjax.core.config_build"
  )


def _convert_union(value: Any, hint: Any, path: str, default: Any) -> Any:
  members = list(typing.get_args(hint))
  if type(None) in members:
    members.remove(type(None))
    if value is None or (isinstance(value, Text) and value.lower() in ("none", "null")):
      return None
  if isinstance(value, Mapping):  # only these read a mapping, and their own errors are better
    members = [m for m in members if dataclasses.is_dataclass(m) or _is_mapping(m)] or members
  if len(members) == 1 and not _is_scalar(members[0]):
    return _convert(value, members[0], path, default)
  # Narrowest first: the text "3" is an int before it is a float or a str.
  for member in sorted(members, key=lambda m: _SCALARS.index(m) if m in _SCALARS else -1):
    try:
      return _convert(value, member, path, default)
    except ConfigError:
      continue
  raise _mismatch(value, hint, path)


def _convert_tuple(value: Any, hint: Any, path: str) -> tuple:
  args = typing.get_args(hint)
  items = _split(value) if isinstance(value, Text) else value
  if not isinstance(items, list | tuple):
    raise _mismatch(value, hint, path)
  if len(args) == 2 and args[1] is Ellipsis:
    args = args[:1] * len(items)
  if len(args) != len(items):
    raise _mismatch(value, hint, path, f"give {len(args)} elements, not {len(items)}")
  return tuple(
    _convert(item, arg, f"{path}.{i}")
    for i, (item, arg) in enumerate(zip(items, args, strict=True))
  )


def _convert_mapping(value: Any, hint: Any, path: str) -> dict[str, Any]:
  _, item_hint = typing.get_args(hint)
  if not isinstance(value, Mapping):
    raise _mismatch(value, hint, path, f"set its keys one by one: --{path}.KEY=VALUE")
  for key in value:
    if not isinstance(key, str) or "." in key:
      raise ConfigError(f"{path}: key {key!r} cannot be overridden; use a string without dots")
  return {key: _convert(item, item_hint, f"{path}.{key}") for key, item in value.items()}


_SCALARS = (bool, int, float, str)


def _convert_scalar(value: Any, hint: type, path: str) -> Any:
  if isinstance(value, Text):
    try:
      value = _read_scalar(value, hint)
    except ValueError as error:
      raise _mismatch(value, hint, path) from error
  if hint is float and type(value) is int:
    value = float(value)
  if type(value) is not hint:  # exact, since bool is a subclass of int
    raise _mismatch(value, hint, path)
  if hint is float and math.isnan(value):
    raise ConfigError(f"{path}=nan: not a number; give a finite number")
  return value


def _read_scalar(text: Text, hint: type) -> Any:
  if hint is bool:
    return {"true": True, "false": False}.get(text.lower(), text)
  if hint is str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return str(text[1:-1] if quoted else text)  # so 'none' in quotes can be a string
  return hint(text)


def _split(text: Text) -> list[Text]:
  """Reads "1,2,3", "(1,2)", "[1,2]" or "(1,2),(3,4)": the items between the outer commas."""
  items = _split_commas(text)
  if len(items) == 1 and items[0][:1] + items[0][-1:] in ("()", "[]"):
    items = _split_commas(items[0][1:-1])
  if not items[-1]:
    items.pop()  # a trailing comma, or nothing at all
  return [Text(item) for item in items]


def _split_commas(text: str) -> list[str]:
  items, depth = [""], 0
  for char in text:
    depth += (char in "([") - (char in ")]")
    if char == "," and depth == 0:
      items.append("")
    else:
      items[-1] += char
  return [item.strip() for item in items]


def _is_mapping(hint: Any) -> bool:
  return typing.get_origin(hint) is collections.abc.Mapping


def _is_scalar(hint: Any) -> bool:
  return hint in _SCALARS or typing.get_origin(hint) is typing.Literal


def _unwrap(value: Any) -> Any:
  return str(value) if isinstance(value, Text) else value


def _show(value: Any) -> str:
  """The value as the user wrote it, cut to stay readable in one line."""
  shown = str(value) if isinstance(value, Text) else repr(value)
  return shown if len(shown) <= 60 else shown[:57] + "..."


def _mismatch(value: Any, hint: Any, path: str, fix: str = "") -> ConfigError:
  got = "" if isinstance(value, Text) else f", got {type(value).__name__}"
  fix = fix or f"write for example --{path}={_example(hint)}"
  return ConfigError(f"{path}={_show(value)}: expected {_name(hint)}{got}; {fix}")


def _name(hint: Any) -> str:
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(_name(arg) for arg in args)
  if origin is typing.Literal:
    return "one of " + ", ".join(repr(arg) for arg in args)
  if origin is tuple:
    return "tuple[" + ", ".join("..." if a is Ellipsis else _name(a) for a in args) + "]"
  if _is_mapping(hint):
    return f"a mapping of {_name(args[1])}"
  return "none" if hint is type(None) else hint.__name__


def _example(hint: Any) -> str:
  """A text that this annotation would accept, for the fix in a message."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint in _SCALARS:
    return {bool: "true", int: "1", float: "0.1", str: "text"}[hint]
  if origin is typing.Literal:
    return str(args[0])
  if origin in (typing.Union, types.UnionType):
    return _example(args[0])
  if origin is tuple:
    items = args[:1] * 2 if args[-1] is Ellipsis else args
    return ",".join(f"({_example(a)})" if typing.get_args(a) else _example(a) for a in items)
  return "none" if hint is type(None) else "VALUE"
