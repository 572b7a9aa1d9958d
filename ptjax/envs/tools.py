"""What a tool takes, what a call of it is, and what can be wrong with one.

A call that is not exactly right is never repaired: it becomes a `Malformed` with a kind, which the
policy gets to read and which is counted.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal["string", "integer", "number", "boolean", "array", "object"]

_TYPES: dict[str, tuple[type, ...]] = {
  "string": (str,),
  "integer": (int,),
  "number": (int, float),
  "boolean": (bool,),
  "array": (list,),
  "object": (dict,),
}


class CallError(enum.StrEnum):
  """Why a call cannot be run."""

  NOT_JSON = "not_json"
  UNCLOSED = "unclosed"  # opened, and never closed
  UNOPENED = "unopened"  # closed, and never opened
  MISPLACED = "misplaced"  # with text beside it, where the format has room for none
  BAD_SHAPE = "bad_shape"  # JSON, but not the name and the arguments of a tool
  UNKNOWN_TOOL = "unknown_tool"
  BAD_ARGUMENTS = "bad_arguments"  # missing, unexpected, or of another type


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One argument of a tool.

  Attributes:
    kind: its JSON type.
    description: for the model.
    required: whether a call must give it.
  """

  kind: Kind
  description: str = ""
  required: bool = True


@dataclasses.dataclass(frozen=True)
class ToolSpec:
  """What a model is told of a tool.

  Attributes:
    name: an identifier.
    description: one sentence.
    parameters: by name.
  """

  name: str
  description: str
  parameters: Mapping[str, Parameter]

  def __post_init__(self):
    if not self.name.isidentifier():
      raise ValueError(f"tool name {self.name!r} is no identifier")
    for name, parameter in self.parameters.items():
      if parameter.kind not in _TYPES:
        raise ValueError(
          f"parameter {name} of tool {self.name} has kind {parameter.kind!r}; use one of "
          f"{', '.join(_TYPES)}"
        )

  @property
  def text_parameter(self) -> str | None:
    """The name of its one parameter where that is a string: such a tool takes code as it is."""
    if len(self.parameters) != 1:
      return None
    ((name, parameter),) = self.parameters.items()
    return name if parameter.kind == "string" and parameter.required else None

  def schema(self) -> dict[str, Any]:
    """As chat templates show it."""
    properties = {
      name: {"type": p.kind} | ({"description": p.description} if p.description else {})
      for name, p in self.parameters.items()
    }
    required = [name for name, p in self.parameters.items() if p.required]
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {
      "name": self.name,
      "description": self.description,
      "parameters": parameters,
    }
    return {"type": "function", "function": function}


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """A call that fits its tool."""

  name: str
  arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Malformed:
  """A call that cannot be run; `detail` is one line for the policy that tells what to change."""

  error: CallError
  detail: str

  @property
  def observation(self) -> str:
    """What the policy gets to see in place of a result."""
    return f"error: {self.error}: {self.detail}"


def checked(name: Any, arguments: Any, specs: Sequence[ToolSpec]) -> ToolCall | Malformed:
  """The call, or the first thing that is wrong with it."""
  if not isinstance(name, str):
    return Malformed(CallError.BAD_SHAPE, f"the name must be a string, not {_json_type(name)}")
  spec = next((s for s in specs if s.name == name), None)
  if spec is None:
    known = ", ".join(s.name for s in specs)
    return Malformed(CallError.UNKNOWN_TOOL, f"there is no tool {name!r}; there is {known}")
  if not isinstance(arguments, dict):
    kind = _json_type(arguments)
    return Malformed(CallError.BAD_SHAPE, f"the arguments must be an object, not {kind}")
  fault = _argument_fault(spec, arguments)
  return ToolCall(name, arguments) if fault is None else Malformed(CallError.BAD_ARGUMENTS, fault)


def _argument_fault(spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
  for name, parameter in spec.parameters.items():
    if parameter.required and name not in arguments:
      return f"{spec.name} needs the argument {name!r}"
  for name, value in arguments.items():
    if name not in spec.parameters:
      known = ", ".join(spec.parameters) or "none"
      return f"{spec.name} has no argument {name!r}; it has {known}"
    kind = spec.parameters[name].kind
    if _is_bool(value) != (kind == "boolean") or not isinstance(value, _TYPES[kind]):
      return f"{name!r} of {spec.name} must be of type {kind}, not {_json_type(value)}"
  if not _is_text(arguments):
    return f"a string of {spec.name} holds half of a character (a lone surrogate)"
  return None


def _is_bool(value: Any) -> bool:
  return isinstance(value, bool)  # which is an int in Python, and is none in JSON


def _is_text(value: Any) -> bool:
  """Whether every string inside has an encoding."""
  match value:
    case str():
      return not any("\ud800" <= c <= "\udfff" for c in value)
    case dict():
      return all(_is_text(k) and _is_text(v) for k, v in value.items())
    case list():
      return all(map(_is_text, value))
  return True


def _json_type(value: Any) -> str:
  if value is None:
    return "null"
  if _is_bool(value):
    return "boolean"
  return next(kind for kind, types in _TYPES.items() if isinstance(value, types))
