"""The parser of a model reads what the model's own template writes."""

import pytest
from stock_templates import STOCK, WITH_TOOLS, stock

from ptjax.envs.tool_formats import FENCED, HERMES, LLAMA, format_of, parse
from ptjax.envs.tools import Parameter, ToolCall, ToolSpec

SPECS = [
  ToolSpec("python", "Runs code.", {"code": Parameter("string")}),
  ToolSpec("add", "Adds.", {"a": Parameter("integer"), "b": Parameter("number", required=False)}),
]
WANTED = {"llama3_1": LLAMA, "llama3_2": LLAMA, "qwen2_5": HERMES, "qwen3": HERMES}
CALLS = [
  ToolCall("python", {"code": 'print("</tool_call>", \'\\n\')\nprint("ä ☃")'}),
  ToolCall("add", {"a": -3}),
  ToolCall("add", {"a": 3, "b": 2.5}),
]


@pytest.mark.parametrize("family", STOCK)
def test_the_template_decides(family):
  assert format_of(stock(family)) is WANTED.get(family, FENCED)


@pytest.mark.parametrize("family", WITH_TOOLS)
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.name}{len(c.arguments)}")
def test_what_the_template_writes_is_read_and_written(family, call):
  chat = stock(family)
  user = {"role": "user", "content": "Do it."}
  tools = [spec.schema() for spec in SPECS]
  message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": call.name, "arguments": dict(call.arguments)}}],
  }
  prompt = chat.render([user], tools=tools, add_generation_prompt=True)
  turn = chat.render([user, message], tools=tools)[len(prompt) :]
  form = format_of(chat)
  written = form.write(call, SPECS)
  assert written in turn  # after an empty reasoning in Qwen3
  end = chat.tokenizer.decode([chat.tokenizer.eos_ids[0]])
  assert parse(form, turn.partition(end)[0], SPECS).calls == (call,)
  assert form.read(written, SPECS).calls == (call,)
