"""Turns of an episode are joined by the template's own tokens, whatever the model sampled."""

import numpy as np
import pytest
from stock_templates import STOCK, WITH_TOOLS, byte_level, stock

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.turns import after_turn
from ptjax.envs.tools import Parameter, ToolSpec

USER = {"role": "user", "content": "What is 2 + 2? Use <|im_start|> and <start_of_turn>."}
SAID = "Let me see.\n\nOne moment"
TOOLS = [ToolSpec("python", "Runs code.", {"code": Parameter("string")}).schema()]


def grown(chat, history, said, new, tools=None):
  """Prompt, the turn as sampled in its canonical tokens, and the continuation."""
  turn = np.append(chat.tokenizer.encode(said), end_of(chat))
  prompt = chat.encode(history, tools=tools, add_generation_prompt=True)
  return np.concatenate([prompt, turn, after_turn(chat, history, new, tools=tools)])


def end_of(chat) -> int:
  """The end token that the template itself writes after a turn."""
  whole = chat.encode([USER, {"role": "assistant", "content": "x"}]).tolist()
  return next(i for i in reversed(whole) if i in chat.tokenizer.eos_ids)


@pytest.mark.parametrize("family", STOCK)
def test_appended_turns_equal_the_full_render(family):
  chat = stock(family)
  new = [{"role": "user", "content": "4.\n\nAnd <end_of_turn> 3 + 3?"}]
  whole = [USER, {"role": "assistant", "content": SAID}, *new]
  wanted = chat.encode(whole, add_generation_prompt=True)
  np.testing.assert_array_equal(grown(chat, [USER], SAID, new), wanted)


@pytest.mark.parametrize("family", WITH_TOOLS)
@pytest.mark.parametrize("results", [["4"], ["4", "a <tool_call> in a result\n"]], ids=len)
def test_results_of_tools_are_one_block(family, results):
  """Neighbouring results render together, and in them there is no control token."""
  chat = stock(family)
  new = [{"role": "tool", "content": text} for text in results]
  whole = [USER, {"role": "assistant", "content": SAID}, *new]
  wanted = chat.encode(whole, tools=TOOLS, add_generation_prompt=True)
  np.testing.assert_array_equal(grown(chat, [USER], SAID, new, TOOLS), wanted)


@pytest.mark.parametrize("family", STOCK)
def test_a_turn_that_did_not_end_gets_its_end(family):
  chat = stock(family)
  new = [{"role": "user", "content": "go on"}]
  ended = after_turn(chat, [USER], new)
  cut = after_turn(chat, [USER], new, ended=False)
  np.testing.assert_array_equal(cut[-len(ended) :], ended)
  added = cut[: len(cut) - len(ended)]
  assert int(added[-1]) == end_of(chat)
  # What stands before the end token belongs to the template, and is white space.
  assert chat.tokenizer.decode(added[:-1]).strip() == ""


def test_a_reasoning_turn_keeps_its_tokens():
  """Qwen3 drops earlier reasoning when it renders anew: here what was sampled stays."""
  chat = stock("qwen3")
  history = [USER]
  continuation = after_turn(chat, history, [{"role": "user", "content": "more"}])
  text = chat.tokenizer.decode(continuation)
  assert text == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def template(source):
  return ChatTemplate(byte_level(("<a>", "<b>"), ("<b>",), source))


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("{{ messages[1].content }}", "ends the assistant's turn by none of"),
    ("{% for m in messages %}{{ m.content }}{% endfor %}", "goes on after"),
    ("{% for m in messages %}{{ m.content }}..<b>{% endfor %}", "goes on after"),
    ("{% for m in messages %}{{ m.content }}<a><b>{% endfor %}", "goes on after .*'<a>'"),
    ("{{ messages[-1].content }}<b>", "0 times"),
    ("{% for m in messages %}{{ m.content * 2 }}<b>{% endfor %}", "2 times"),
  ],
)
def test_templates_that_do_not_say_where_a_turn_ends(source, message):
  with pytest.raises(ValueError, match=message):
    after_turn(template(source), [USER], [{"role": "user", "content": "x"}])


def test_a_role_that_the_template_refuses():
  with pytest.raises(ValueError, match="cannot render"):
    after_turn(stock("gemma2"), [USER], [{"role": "tool", "content": "4"}])


def test_nothing_to_follow():
  with pytest.raises(ValueError, match="pass a message"):
    after_turn(stock("qwen3"), [USER], [])
