"""gin as a front end: it fills a tree of bindings, which `config_build.build` then checks.

Each dataclass under the root is registered as a gin configurable by its name, so that
`RLConfig.kl_coef = 0.01` reaches every `RLConfig` in the tree without references.
Where a class occurs more than once, the path of field names is the gin scope:

  OptimizerConfig.lr = 1e-5                 # every optimiser
  critic/optimizer/OptimizerConfig.lr = 1e-4  # config.critic.optimizer alone

Elements of tuples are given by references, whose scope is then free:

  Experiment.domains = (@code/DomainConfig(), @math/DomainConfig())
  code/DomainConfig.weight = 2

A nested config that is none by default comes to life when its own class is bound, or by a
reference: `Experiment.critic = @critic/CriticConfig()`.
"""

import collections.abc
import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import gin

from ptjax.core.config_build import ConfigError, one_line, suggest

# What gin raises for a mistake in a file or a binding.
_GIN_ERRORS = (
  AttributeError,
  ImportError,
  LookupError,
  NameError,
  OSError,
  RuntimeError,
  SyntaxError,
  TypeError,
  ValueError,
)


class Bound(dict):
  """The bindings of one node of the tree.

  Attributes:
    selector: gin's full name of the class.
    scope: the gin scope in which its bindings were read.
    is_bound: whether the class itself has a binding here, not only a class below it.
  """

  def __init__(self, values: dict[str, Any], selector: str, scope: str, is_bound: bool):
    super().__init__(values)
    self.selector = selector
    self.scope = scope
    self.is_bound = is_bound


def compose_gin(root: type, files: Sequence[str], bindings: Sequence[str]) -> Bound:
  """Parses gin files, then bindings, into a partial tree for `build(root, tree)`.

  gin keeps its parsed config in a process-wide table; it is emptied before and after.

  Raises:
    ConfigError: a gin error, or a binding that no part of the tree uses.
  """
  for file in files:
    if not Path(file).is_file():
      raise ConfigError(f"gin file {file} not found")
  classes = set(_reachable(root))
  for cls in classes:
    _maker(cls)
  gin.clear_config()
  try:
    gin.parse_config_files_and_bindings(files, bindings, finalize_config=False)
    tree = _maker(root)()
    written = _written_bindings(gin.config_str(max_line_length=10**6))
  except _GIN_ERRORS as error:
    raise ConfigError(f"gin: {_explain(error, classes)}") from error
  finally:
    gin.clear_config()
  _check_used(written, tree)
  return tree


@functools.cache
def _maker(cls: type) -> Callable[..., Bound]:
  """Registers `cls` and returns the configurable that collects its bindings.

  It takes any keyword, so that an unknown key is found by `build`, with its path.
  """

  def make(**bound: Any) -> Bound:
    node = Bound(bound, _selector(cls), gin.current_scope_str(), is_bound=bool(bound))
    for name, value in bound.items():
      if callable(value):
        raise ValueError(f"{cls.__qualname__}.{name} is a class; write its reference with ()")
    for name, nested in _nested_fields(cls).items():
      if name not in bound:
        with gin.config_scope(name):
          inner = _maker(nested.cls)()
        if inner.is_bound or (inner and not nested.is_none_by_default):
          node[name] = inner
    return node

  return cast(
    Callable[..., Bound],
    gin.external_configurable(make, name=cls.__qualname__, module=cls.__module__),
  )


def _selector(cls: type) -> str:
  return f"{cls.__module__}.{cls.__qualname__}"


@dataclasses.dataclass(frozen=True)
class _Nested:
  cls: type
  is_none_by_default: bool


@functools.cache
def _nested_fields(cls: type) -> dict[str, _Nested]:
  """Fields that hold one dataclass, or one or none."""
  hints = typing.get_type_hints(cls)
  nested = {}
  for field in dataclasses.fields(cls):
    hint = hints[field.name]
    members = [m for m in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(m)]
    is_container = typing.get_origin(hint) in (tuple, collections.abc.Mapping)
    if len(members) == 1 and not is_container:
      nested[field.name] = _Nested(members[0], field.default is None)
  return nested


def _reachable(hint: Any) -> Iterator[type]:
  """All dataclasses that an annotation leads to, the root included."""
  if dataclasses.is_dataclass(hint):
    yield hint
    for inner in typing.get_type_hints(hint).values():
      yield from _reachable(inner)
  for inner in typing.get_args(hint):
    yield from _reachable(inner)


def _written_bindings(config_str: str) -> list[tuple[str, str, str]]:
  """(scope, class, parameter) of each binding in gin's own listing; macros have no dot."""
  pattern = re.compile(r"^(?:([\w/.-]+)/)?([\w.]+)\.(\w+) = ", flags=re.MULTILINE)
  return [(scope or "", cls, param) for scope, cls, param in pattern.findall(config_str)]


def _check_used(written: Sequence[tuple[str, str, str]], tree: Bound) -> None:
  """A binding whose scope or class no node has would be dropped silently; refuse it."""
  nodes = list(_nodes(tree))
  for scope, cls, param in written:
    scopes = [n.scope for n in nodes if f".{n.selector}".endswith(f".{cls}")]
    if not any(f"{s}/".startswith(f"{scope}/") or not scope for s in scopes):
      name = f"{scope}/{cls}.{param}" if scope else f"{cls}.{param}"
      fix = f"scopes of {cls}: {', '.join(sorted(set(filter(None, scopes)))) or 'none'}"
      raise ConfigError(f"gin: binding {name} is used by no part of the config; {fix}")


def _nodes(value: Any) -> Iterator[Bound]:
  if isinstance(value, Bound):
    yield value
    for inner in value.values():
      yield from _nodes(inner)
  elif isinstance(value, list | tuple):
    for inner in value:
      yield from _nodes(inner)


def _explain(error: Exception, classes: set[type]) -> str:
  message = one_line(error)
  unknown = re.search(r"No configurable matching '([\w.]+)'", message)
  if unknown:
    known = [cls.__qualname__ for cls in classes]
    return f"no config class {unknown[1]}; {suggest(unknown[1], known)}"
  macro = re.search(r"configurable 'macro' .* in scope '([\w/]+)'", message)
  if macro:
    return f"macro %{macro[1]} has no value; add a line {macro[1]} = VALUE"
  return message
