"""Calls of tools: read exactly or refused with a kind, in every format; and the faults of peers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.envs import strict_json
from ptjax.envs.tool_formats import FENCED, FORMATS, HERMES, LLAMA, parse
from ptjax.envs.tools import CallError, Malformed, Parameter, ToolCall, ToolSpec, checked

PYTHON = ToolSpec("python", "Runs code.", {"code": Parameter("string")})
ADD = ToolSpec("add", "Adds.", {"a": Parameter("integer"), "b": Parameter("number", "", False)})
NOW = ToolSpec("now", "Tells the time.", {})
ANY = ToolSpec("any", "Takes anything.", {
  kind: Parameter(kind, required=False)
  for kind in ("string", "integer", "number", "boolean", "array", "object")
})  # fmt: skip
SPECS = [PYTHON, ADD, NOW, ANY]


def hermes(body: str) -> str:
  return f"<tool_call>\n{body}\n</tool_call>"


def one(form, text):
  (call,) = form.read(text, SPECS).calls
  return call


def kinds(form, text):
  return [c.error if isinstance(c, Malformed) else c.name for c in form.read(text, SPECS).calls]


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
  | TEXT,
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
  max_leaves=8,
)  # fmt: skip
ARGUMENTS = st.fixed_dictionaries(
  {},
  optional={
    "string": TEXT | st.sampled_from(["</tool_call>", "<tool_call>", "```", "\n```\n", "{"]),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "array": st.lists(JSON, max_size=3),
    "object": st.dictionaries(TEXT, JSON, max_size=3),
  },
)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@settings(max_examples=60, deadline=None)
@given(arguments=ARGUMENTS)
def test_what_is_written_is_read(form, arguments):
  call = ToolCall("any", arguments)
  assert form.read(form.write(call, SPECS), SPECS).calls == (call,)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, ARGUMENTS), max_size=4), TEXT)
def test_calls_keep_their_order_and_the_text_beside_them(pairs, tail):
  """Text that holds no tag of its own."""
  pairs = [(before.replace("<", ""), arguments) for before, arguments in pairs]
  tail = tail.replace("<", "")
  calls = [ToolCall("any", arguments) for _, arguments in pairs]
  text = "".join(b + HERMES.write(c, SPECS) for (b, _), c in zip(pairs, calls, strict=True)) + tail
  parsed = HERMES.read(text, SPECS)
  assert parsed.calls == tuple(calls)
  assert parsed.text == ("".join(before for before, _ in pairs) + tail).strip()


PIECES = st.sampled_from([
  *("<tool_call>", "</tool_call>", "<|python_tag|>", "```python\n", "\n```", "```", "\n", "{", "}"),
  *('"', ",", ":", '"name"', '"arguments"', '"parameters"', '"python"', '"add"', '{"a": 1}', "1"),
  *("\\", "NaN", "<think>", "</think>", "\ud800", "\u2028", "[", "]", "x"),
])  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.booleans())
def test_any_text_is_read_and_calls_fit_their_tools(form, text, reasoning_open):
  parsed = parse(form, text, SPECS, reasoning_open=reasoning_open)
  for call in parsed.calls:
    if isinstance(call, ToolCall):
      assert checked(call.name, call.arguments, SPECS) == call
  broken = [isinstance(call, Malformed) for call in parsed.calls]
  syntax = (CallError.NOT_JSON, CallError.UNCLOSED)
  for call in parsed.calls[:-1]:
    assert not (isinstance(call, Malformed) and call.error in syntax and form is HERMES), broken


@settings(max_examples=100, deadline=None)
@given(ARGUMENTS, st.data())
def test_a_missing_character_is_never_made_good(arguments, data):
  """Without one character a call is malformed, or it says another thing in valid JSON."""
  written = HERMES.write(ToolCall("any", arguments), SPECS)
  at = data.draw(st.integers(0, len(written) - 1))
  damaged = written[:at] + written[at + 1 :]
  body = damaged.removeprefix("<tool_call>").removesuffix("</tool_call>")
  for call in HERMES.read(damaged, SPECS).calls:
    if isinstance(call, ToolCall):
      assert damaged == f"<tool_call>{body}</tool_call>"
      assert json.loads(body) == {"name": call.name, "arguments": call.arguments}


@pytest.mark.parametrize(
  ("body", "error", "detail"),
  [
    ('{"name": "add", "arguments": {"a": 1},}', CallError.NOT_JSON, "at character"),
    ("{'name': 'add', 'arguments': {'a': 1}}", CallError.NOT_JSON, "at character 1"),
    ('{"name": "python", "arguments": {"code": "a\nb"}}', CallError.NOT_JSON, "control character"),
    ('{"name": "add", "arguments": {"a": NaN}}', CallError.NOT_JSON, "NaN"),
    ('{"name": "add", "arguments": {"a": 1e999}}', CallError.NOT_JSON, "1e999 is too large"),
    ('{"name": "add", "arguments": {"a": 1, "a": 2}}', CallError.NOT_JSON, "'a' stands twice"),
    (f'{{"name": "add", "arguments": {{"a": {"9" * 5000}}}}}', CallError.NOT_JSON, "digits"),
    ('{"name": "any", "arguments": {"array": ' + "[" * 100_000, CallError.NOT_JSON, "deeply"),
    ("", CallError.NOT_JSON, "Expecting value"),
    ('[{"name": "add", "arguments": {"a": 1}}]', CallError.BAD_SHAPE, "list"),
    ('{"name": "now"}', CallError.BAD_SHAPE, "['name']"),
    ('{"name": "add", "parameters": {"a": 1}}', CallError.BAD_SHAPE, "parameters"),
    ('{"name": "add", "arguments": {"a": 1}, "id": 3}', CallError.BAD_SHAPE, "id"),
    ('{"name": null, "arguments": {}}', CallError.BAD_SHAPE, "not null"),
    # OpenAI's form, an object inside a string, is not decoded twice.
    ('{"name": "add", "arguments": "{\\"a\\": 1}"}', CallError.BAD_SHAPE, "not string"),
    ('{"name": "sum", "arguments": {}}', CallError.UNKNOWN_TOOL, "python, add, now, any"),
    ('{"name": "add", "arguments": {}}', CallError.BAD_ARGUMENTS, "needs the argument 'a'"),
    ('{"name": "add", "arguments": {"a": "1"}}', CallError.BAD_ARGUMENTS, "integer, not string"),
    ('{"name": "add", "arguments": {"a": true}}', CallError.BAD_ARGUMENTS, "not boolean"),
    ('{"name": "add", "arguments": {"a": 1.0}}', CallError.BAD_ARGUMENTS, "not number"),
    ('{"name": "add", "arguments": {"a": 1, "c": 2}}', CallError.BAD_ARGUMENTS, "no argument 'c'"),
    ('{"name": "python", "arguments": {"code": "\\ud800"}}', CallError.BAD_ARGUMENTS, "surrogate"),
  ],
)
def test_malformed_bodies(body, error, detail):
  call = one(HERMES, hermes(body))
  assert (type(call), call.error) == (Malformed, error)
  assert detail in call.detail
  assert "\n" not in call.observation


GOOD = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    (f"<tool_call>{GOOD}</tool_call>", ["add"]),
    (hermes(GOOD) + "\nand\n" + hermes(GOOD), ["add", "add"]),
    # vllm#45167, sglang#28698: the closing tag inside a string ends nothing.
    (hermes('{"name": "python", "arguments": {"code": "</tool_call>"}}'), ["python"]),
    # llama.cpp#18183: JSON without tags is text.
    (GOOD, []),
    (f"<tool_call>\n{GOOD}", [CallError.UNCLOSED]),
    (f"<tool_call>\n{GOOD}}}\n</tool_call>", [CallError.UNCLOSED]),
    (f"{GOOD}\n</tool_call>", [CallError.UNOPENED]),
    (hermes(GOOD) + "\n</tool_call>", ["add", CallError.UNOPENED]),
    # After a broken call nothing is taken for a call: it may be a string of the broken one.
    ("<tool_call>{'code': '" + hermes(GOOD) + "'}</tool_call>", [CallError.NOT_JSON]),
    # A call that is whole and does not fit ends nothing.
    (hermes('{"name": "x", "arguments": {}}') + hermes(GOOD), [CallError.UNKNOWN_TOOL, "add"]),
    ("<tool_call>", [CallError.NOT_JSON]),
  ],
)
def test_hermes(text, wanted):
  assert kinds(HERMES, text) == wanted


LLAMA_GOOD = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    (LLAMA_GOOD, ["add"]),
    (f"  {LLAMA_GOOD}\n", ["add"]),
    (f"<|python_tag|>{LLAMA_GOOD}", ["add"]),
    # What Llama 3.2 writes of its own accord.
    ('{"type": "function", "name": "add", "parameters": {"a": 1}}', ["add"]),
    ("<|python_tag|>import os\nprint({1: 2})", ["python"]),
    ("I compute.<|python_tag|>{1: 2}[1]", ["python"]),
    ('<|python_tag|>{"name": "add", "parameters": }', [CallError.NOT_JSON]),
    (GOOD, [CallError.BAD_SHAPE]),
    (f"Sure: {LLAMA_GOOD}", [CallError.MISPLACED]),
    (f"{LLAMA_GOOD}; {LLAMA_GOOD}", [CallError.MISPLACED]),
    (f"{LLAMA_GOOD} as asked", [CallError.MISPLACED]),
    ('{"name": "add", "parameters": {"a": 1}', [CallError.NOT_JSON]),
    ('{"answer": 4}', []),
    ("{x | x > 0}", []),
    ("The name is {name}.", []),
  ],
)
def test_llama(text, wanted):
  assert kinds(LLAMA, text) == wanted


def test_llama_without_a_tool_for_code():
  (call,) = LLAMA.read("<|python_tag|>print(1)", [ADD]).calls
  assert call.error is CallError.BAD_SHAPE


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    ("```python\nprint(1)\n```", ["python"]),
    ("Text\n```python\nprint(1)\n```\nmore\n```add\n{\"a\": 1}\n```", ["python", "add"]),
    ("```now\n```", ["now"]),
    ("```now\n{}\n```", ["now"]),
    ("```python\n```", ["python"]),
    ("```python \r\nprint(1)\r\n```\r\n", ["python"]),
    ("```python\nprint('```')\n```", ["python"]),
    ("```python\nprint(1)", [CallError.UNCLOSED]),
    ("```python\nprint(1)```", [CallError.UNCLOSED]),
    ("```add\n{\"a\": 1} 2\n```", [CallError.NOT_JSON]),
    ("```add\n[1]\n```", [CallError.BAD_SHAPE]),
    ("```add\n```", [CallError.BAD_ARGUMENTS]),
    # Blocks of other languages are text, and so is what stands in them.
    ("```text\n```python\nprint(1)\n```", []),
    ("```\nprint(1)\n```", []),
    ("```sh\nls\n```\n```python\n1\n```", ["python"]),
    ("Write ```python here", []),
    ("  ```python\n  1\n  ```", []),
  ],
)  # fmt: skip
def test_fenced(text, wanted):
  assert kinds(FENCED, text) == wanted


def test_fenced_code_is_taken_as_it_is():
  code = "  if x:\n\tprint('ä')\n\n"
  assert one(FENCED, f"```python\n{code}\n```") == ToolCall("python", {"code": code})


@pytest.mark.parametrize(
  ("text", "opened", "calls", "rest"),
  [
    (f"<think>{hermes(GOOD)}</think>done", False, 0, "done"),
    (f"<think>{hermes(GOOD)}", False, 0, ""),
    (f"hm {hermes(GOOD)}</think>{hermes(GOOD)}ok", True, 1, "ok"),
    (hermes(GOOD), True, 0, ""),
    # A message that does not begin with reasoning has none.
    (hermes('{"name": "python", "arguments": {"code": "</think>"}}'), False, 1, ""),
  ],
)
def test_calls_in_reasoning_are_none(text, opened, calls, rest):
  parsed = parse(HERMES, text, SPECS, reasoning_open=opened)
  assert len(parsed.calls) == calls
  assert parsed.text == rest


def test_strict_json_says_where_it_ends():
  assert strict_json.decode(' {"a": [1, 2.5, "x"]} tail') == ({"a": [1, 2.5, "x"]}, 21)


def test_specs_are_checked():
  with pytest.raises(ValueError, match="no identifier"):
    ToolSpec("a b", "", {})
  with pytest.raises(ValueError, match="kind 'text'"):
    ToolSpec("a", "", {"x": Parameter("text")})
