"""How models write calls of tools: one parser for training and evaluation.

Which format a model has is decided by its own chat template (`format_of`): it is the one that reads
back what the template writes for a call. A template that knows no tools gets fenced blocks, and the
tools are described in the system message.

  hermes   <tool_call>
           {"name": "python", "arguments": {"code": "print(1)"}}
           </tool_call>                                              Hermes, Qwen
  llama    {"name": "python", "parameters": {"code": "print(1)"}}    the whole message, or
           <|python_tag|>print(1)                                    for the tool named python
  fenced   ```python
           print(1)
           ```                                                       every other

What cannot be read is `Malformed`, and so is all that follows it in the same message: text of a
broken call is never taken for another call.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Protocol

from ptjax.data.chat_template import ChatTemplate
from ptjax.envs import strict_json
from ptjax.envs.tools import CallError, Malformed, Parameter, ToolCall, ToolSpec, checked

_THINK, _END_THINK = "<think>", "</think>"

Calls = tuple[ToolCall | Malformed, ...]


@dataclasses.dataclass(frozen=True)
class Parsed:
  """What a message of the model says.

  Attributes:
    calls: in order.
    text: what stands beside them, without reasoning.
    reasoning: what stands before `</think>`, where the message begins with reasoning.
  """

  calls: Calls
  text: str
  reasoning: str = ""


class ToolFormat(Protocol):
  """One way of writing calls."""

  @property
  def name(self) -> str: ...

  @property
  def native(self) -> bool:
    """Whether the chat template shows the tools and has a role for their results."""
    ...

  def read(self, text: str, specs: Sequence[ToolSpec]) -> Parsed:
    """Finds the calls in a message without reasoning."""
    ...

  def write(self, call: ToolCall, specs: Sequence[ToolSpec]) -> str:
    """The text that `read` takes for this call."""
    ...


def parse(
  form: ToolFormat, text: str, specs: Sequence[ToolSpec], *, reasoning_open: bool = False
) -> Parsed:
  """Reads a message of the model; the only way from text to calls, whoever asks.

  Reasoning is text that the model addresses to itself: calls in it are none.

  Args:
    form: of the model.
    text: the message, without the token that ends it and with all other control tokens.
    specs: the tools that there are.
    reasoning_open: the generation prompt has opened `<think>` already.
  """
  reasoning = ""
  if reasoning_open or text.lstrip().startswith(_THINK):
    reasoning, found, text = text.partition(_END_THINK)
    if not found:
      return Parsed((), "", reasoning)
  return dataclasses.replace(form.read(text, specs), reasoning=reasoning)


@dataclasses.dataclass(frozen=True)
class _Hermes:
  """JSON between tags."""

  name: str = "hermes"
  native: bool = True

  def read(self, text: str, specs: Sequence[ToolSpec]) -> Parsed:
    calls, outside, end = [], [], 0
    while (start := text.find("<tool_call>", end)) >= 0:
      outside.append(text[end:start])
      try:
        # The end of the JSON is where its object ends: a string in it may hold the closing tag.
        value, end = strict_json.decode(text, start + len("<tool_call>"))
      except strict_json.NotJsonError as error:
        calls.append(Malformed(CallError.NOT_JSON, str(error)))
        return Parsed(tuple(calls), "".join(outside).strip())
      end = strict_json.skip_space(text, end)
      if not text.startswith("</tool_call>", end):
        found = text[end : end + 20]
        detail = f"expected </tool_call> after the object, found {found!r}"
        calls.append(Malformed(CallError.UNCLOSED, detail))
        return Parsed(tuple(calls), "".join(outside).strip())
      end += len("</tool_call>")
      calls.append(_call(value, "arguments", specs))
    rest = text[end:]
    if "</tool_call>" in "".join((*outside, rest)):
      calls.append(Malformed(CallError.UNOPENED, "there is a </tool_call> without a <tool_call>"))
    return Parsed(tuple(calls), "".join((*outside, rest)).strip())

  def write(self, call: ToolCall, specs: Sequence[ToolSpec]) -> str:
    del specs
    return f"<tool_call>\n{_dump(call, 'arguments')}\n</tool_call>"


@dataclasses.dataclass(frozen=True)
class _Llama:
  """One JSON object that is the whole message, or what follows the python tag."""

  name: str = "llama"
  native: bool = True

  def read(self, text: str, specs: Sequence[ToolSpec]) -> Parsed:
    before, tag, body = text.partition("<|python_tag|>")
    if tag:
      return Parsed((self._tagged(body.strip(), specs),), before.strip())
    whole = text.strip()
    if not whole.startswith("{"):
      names = "|".join(re.escape(spec.name) for spec in specs)
      if specs and re.search(rf'\{{\s*"name"\s*:\s*"(?:{names})"', whole):
        detail = "a call must be the whole message; there is text before it"
        return Parsed((Malformed(CallError.MISPLACED, detail),), whole)
      return Parsed((), whole)
    call = self._object(whole, specs)
    return Parsed((), whole) if call is None else Parsed((call,), "")

  def _tagged(self, body: str, specs: Sequence[ToolSpec]) -> ToolCall | Malformed:
    code = next((s for s in specs if s.name == "python" and s.text_parameter), None)
    if body.startswith("{"):
      call = self._object(body, specs)
      if call is not None:
        return call
    if code is None:
      return Malformed(CallError.BAD_SHAPE, "after the tag stands no call, and no tool runs Python")
    return checked(code.name, {code.text_parameter: body}, specs)

  def _object(self, text: str, specs: Sequence[ToolSpec]) -> ToolCall | Malformed | None:
    """None for what is no call at all: an answer in JSON, or in braces."""
    try:
      value, end = strict_json.decode(text)
    except strict_json.NotJsonError as error:
      return Malformed(CallError.NOT_JSON, str(error)) if '"name"' in text else None
    if not isinstance(value, dict) or "name" not in value:
      return None
    if rest := text[end:].strip():
      return Malformed(CallError.MISPLACED, f"after the call stands {rest[:20]!r}")
    if value.get("type") == "function":
      value = {key: v for key, v in value.items() if key != "type"}
    return _call(value, "parameters", specs)

  def write(self, call: ToolCall, specs: Sequence[ToolSpec]) -> str:
    del specs
    return _dump(call, "parameters")


@dataclasses.dataclass(frozen=True)
class _Fenced:
  """A Markdown block whose language is the name of a tool; other blocks are text."""

  name: str = "fenced"
  native: bool = False

  def read(self, text: str, specs: Sequence[ToolSpec]) -> Parsed:
    by_name = {spec.name: spec for spec in specs}
    calls, outside, end = [], [], 0
    while opening := _OPENING.search(text, end):
      spec = by_name.get(opening[1])
      closing = _CLOSING.search(text, opening.end())
      if spec is None:
        stop = closing.end() if closing else len(text)
        outside.append(text[end:stop])
        end = stop
        continue
      outside.append(text[end : opening.start()])
      if closing is None:
        detail = f"the block of {spec.name} does not end in a line of three backticks"
        calls.append(Malformed(CallError.UNCLOSED, detail))
        return Parsed(tuple(calls), "".join(outside).strip())
      body = text[opening.end() : closing.start()].removeprefix("\n")
      calls.append(self._block(spec, body, specs))
      end = closing.end()
    return Parsed(tuple(calls), "".join((*outside, text[end:])).strip())

  def _block(self, spec: ToolSpec, body: str, specs: Sequence[ToolSpec]) -> ToolCall | Malformed:
    if spec.text_parameter is not None:
      return checked(spec.name, {spec.text_parameter: body}, specs)
    if not body.strip():
      return checked(spec.name, {}, specs)
    try:
      value, end = strict_json.decode(body)
    except strict_json.NotJsonError as error:
      return Malformed(CallError.NOT_JSON, str(error))
    if rest := body[end:].strip():
      return Malformed(CallError.NOT_JSON, f"after the object stands {rest[:20]!r}")
    return checked(spec.name, value, specs)

  def write(self, call: ToolCall, specs: Sequence[ToolSpec]) -> str:
    spec = next(s for s in specs if s.name == call.name)
    if spec.text_parameter is not None:
      return f"```{call.name}\n{call.arguments[spec.text_parameter]}\n```"
    return f"```{call.name}\n{json.dumps(call.arguments, ensure_ascii=False)}\n```"


_OPENING = re.compile(r"^```([^\s`]*)[ \t\r]*$", re.MULTILINE)
_CLOSING = re.compile(r"\n```[ \t\r]*$", re.MULTILINE)

HERMES, LLAMA, FENCED = _Hermes(), _Llama(), _Fenced()
FORMATS: dict[str, ToolFormat] = {form.name: form for form in (HERMES, LLAMA, FENCED)}


def _call(value, arguments_key: str, specs: Sequence[ToolSpec]) -> ToolCall | Malformed:
  keys = {"name", arguments_key}
  if not isinstance(value, dict) or value.keys() != keys:
    found = sorted(value) if isinstance(value, dict) else type(value).__name__
    detail = f"a call is an object with the keys name and {arguments_key}, not {found}"
    return Malformed(CallError.BAD_SHAPE, detail)
  return checked(value["name"], value[arguments_key], specs)


def _dump(call: ToolCall, arguments_key: str) -> str:
  # As templates write it.
  arguments = json.dumps(call.arguments, ensure_ascii=False)
  return f'{{"name": "{call.name}", "{arguments_key}": {arguments}}}'


_PROBE = ToolSpec("probe", "Measures.", {"depth": Parameter("integer")})
_PROBE_CALL = ToolCall("probe", {"depth": 3})


def format_of(chat: ChatTemplate) -> ToolFormat:
  """The format that reads what the chat template writes for a call; fenced where none does."""
  user = {"role": "user", "content": "Probe."}
  function = {"name": _PROBE_CALL.name, "arguments": dict(_PROBE_CALL.arguments)}
  call = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
  tools = [_PROBE.schema()]
  try:
    prompt = chat.render([user], tools=tools, add_generation_prompt=True)
    whole = chat.render([user, call], tools=tools)
  except ValueError:
    return FENCED
  if not whole.startswith(prompt):
    return FENCED
  turn = whole[len(prompt) :]
  ends = [chat.tokenizer.decode([i]) for i in chat.tokenizer.eos_ids]
  turn = turn[: min((i for i in (turn.find(end) for end in ends) if i >= 0), default=len(turn))]
  return next(
    (f for f in (HERMES, LLAMA) if f.read(turn, [_PROBE]).calls == (_PROBE_CALL,)), FENCED
  )


def describe(specs: Sequence[ToolSpec]) -> str:
  """The tools in words, for the system message of a model whose template shows none."""
  lines = [
    "You may use tools. To use one, write a block like this and end your message:",
    "",
    *_example(specs[0]).split("\n"),
    "",
    "Its result is the next message. Tools:",
  ]
  for spec in specs:
    parameters = ", ".join(f"{name}: {p.kind}" for name, p in spec.parameters.items())
    lines.append(f"- {spec.name}({parameters}): {spec.description}")
  return "\n".join(lines)


def _example(spec: ToolSpec) -> str:
  if spec.text_parameter is not None:
    return f"```{spec.name}\n...\n```"
  body = ", ".join(f'"{name}": ...' for name in spec.parameters)
  return f"```{spec.name}\n{{{body}}}\n```" if body else f"```{spec.name}\n```"
