"""Assistant masks: exact under every stock template, and refused where there is no exact one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stock_templates import STOCK, WITH_TOOLS, byte_level, stock

from ptjax.data.assistant_mask import Example, encode_conversation, one_turn_each
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer

CHAT = [
  {"role": "user", "content": "  2+2? "},
  {"role": "assistant", "content": " 4\n"},
  {"role": "user", "content": "and <|im_end|> 3+3?"},
  {"role": "assistant", "content": "6"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
TOOL_CHAT = [
  {"role": "user", "content": "2+2?"},
  {"role": "assistant", "content": "", "tool_calls": [CALL]},
  {"role": "tool", "content": "4"},
  {"role": "assistant", "content": "It is 4."},
]
TRAINED = {
  "llama3_1": ["4<|eot_id|>", "6<|eot_id|>"],
  "llama3_2": ["4<|eot_id|>", "6<|eot_id|>"],
  "qwen2_5": [" 4\n<|im_end|>", "6<|im_end|>"],
  "gemma2": ["4<end_of_turn>", "6<end_of_turn>"],
  "gemma3": ["4<end_of_turn>", "6<end_of_turn>"],
  "smollm2": [" 4\n<|im_end|>", "6<|im_end|>"],
}
LLAMA_CALL = '{"name": "add", "parameters": {"a": 2, "b": 2}}<|eot_id|>'
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call><|im_end|>'


def trained(chat: ChatTemplate, example: Example) -> list[str]:
  """The texts under the mask, one for each run of it."""
  edges = np.flatnonzero(np.diff(np.concatenate([[0], example.action_mask, [0]])))
  return [
    chat.tokenizer.decode(example.tokens[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)
  ]


@pytest.mark.parametrize("family", TRAINED)
def test_every_assistant_turn_and_nothing_else(family):
  chat = stock(family)
  example = encode_conversation(chat, CHAT)
  assert trained(chat, example) == TRAINED[family]
  whole = chat.encode(CHAT)
  assert chat.tokenizer.decode(example.tokens) == chat.tokenizer.decode(whole)
  # Bytes never merge; SmolLM2 would merge the prompt's line break with the space of " 4".
  assert (example.tokens.tolist() == whole.tolist()) == (family != "smollm2")


@pytest.mark.parametrize("family", STOCK)
def test_a_turn_follows_what_the_sampler_is_given(family):
  chat = stock(family)
  for turn in one_turn_each(CHAT):
    example = encode_conversation(chat, turn, last_turn_only=True)
    prompt = chat.encode(turn[:-1], add_generation_prompt=True)
    assert int(np.argmax(example.action_mask)) == len(prompt)
    assert example.tokens[: len(prompt)].tolist() == prompt.tolist()
    ends = example.tokens[example.action_mask]
    assert int(ends[-1]) in chat.tokenizer.eos_ids
    assert not set(ends[:-1].tolist()) & set(chat.tokenizer.eos_ids)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_tool_calls_are_trained_and_results_are_not(family):
  chat = stock(family)
  end = "<|eot_id|>" if family.startswith("llama") else "<|im_end|>"
  expected = [LLAMA_CALL if family.startswith("llama") else QWEN_CALL, f"It is 4.{end}"]
  messages = TOOL_CHAT
  if family == "qwen3":
    messages = [m | {"reasoning_content": "hm"} for m in TOOL_CHAT]
    expected = [f"<think>\nhm\n</think>\n\n{text}" for text in expected]
  example = encode_conversation(chat, messages, tools=TOOLS)
  assert trained(chat, example) == expected
  assert "add" in chat.tokenizer.decode(example.tokens[: np.argmax(example.action_mask)])


def test_default_system_prompt_is_not_trained():
  for family in ("qwen2_5", "smollm2"):
    chat = stock(family)
    example = encode_conversation(chat, CHAT)
    assert chat.tokenizer.decode(example.tokens).startswith("<|im_start|>system\nYou are")
    assert not example.action_mask[: np.argmax(example.tokens == example.tokens[-2])].any()


def test_dropped_reasoning_is_refused_and_trained_apart():
  chat = stock("qwen3")
  reasoned = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "<think>\nagain\n</think>\n\n6"},
  ]
  with pytest.raises(ValueError, match=r"message 1: .* differently once later .*turns='apart'"):
    encode_conversation(chat, reasoned)
  apart = [encode_conversation(chat, t, last_turn_only=True) for t in one_turn_each(reasoned)]
  assert [trained(chat, e) for e in apart] == [
    ["<think>\nadd\n</think>\n\n4<|im_end|>"],
    ["<think>\nagain\n</think>\n\n6<|im_end|>"],
  ]
  assert "add" not in chat.tokenizer.decode(apart[1].tokens)  # as the sampler would see it


WORDS = st.text(alphabet=st.sampled_from("ab \n<|>é"), max_size=6) | st.sampled_from(
  ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|im_start|>assistant\n"]
)


@settings(max_examples=30, deadline=None)
@given(
  family=st.sampled_from(["llama3_1", "qwen2_5", "gemma3"]),
  system=st.none() | WORDS,
  turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3),
)
def test_any_text_under_any_template(family, system, turns):
  chat = stock(family)
  trims = family != "qwen2_5"
  messages = [] if system is None else [{"role": "system", "content": system}]
  for question, answer in turns:
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
  example = encode_conversation(chat, messages)
  end = TRAINED[family][1][1:]
  expected = [(a.strip() if trims else a) + end for _, a in turns]
  assert trained(chat, example) == expected
  assert example.tokens.tolist() == chat.encode(messages).tolist()


def template(source: str, **fields) -> ChatTemplate:
  specials = ("<s>", "<|im_start|>", "<|im_end|>")
  return ChatTemplate(byte_level(specials, ("<|im_end|>",), source), **fields)


TAGGED = (
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
  "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
  "{% endif %}\n{% endfor %}"
)


def test_generation_tags_say_what_is_trained():
  chat = template(TAGGED)
  assert trained(chat, encode_conversation(chat, CHAT)) == [" 4\n<|im_end|>", "6<|im_end|>"]
  last = encode_conversation(chat, CHAT, last_turn_only=True)
  assert trained(chat, last) == ["6<|im_end|>"]
  assert encode_conversation(chat, CHAT).tokens.tolist() == chat.encode(CHAT).tolist()


def test_no_token_straddles_the_edge_of_the_mask():
  """SmolLM2 merges a line break and a space into one token; the prompt ends with the first."""
  chat = stock("smollm2")
  messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": " 4"}]
  example = encode_conversation(chat, messages)
  assert trained(chat, example) == [" 4<|im_end|>"]
  assert len(example.tokens) == len(chat.encode(messages)) + 1


CHATML = byte_tokenizer().chat_template
MERGING = (
  "{% for m in messages %}{% if loop.first or m.role != loop.previtem.role %}<|im_start|>"
  "{{ m.role }}\n{% endif %}{{ m.content }}{% if loop.last or m.role != loop.nextitem.role %}"
  "<|im_end|>\n{% endif %}{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TWICE = [*CHAT[:2], {"role": "assistant", "content": "really"}]


@pytest.mark.parametrize(
  ("source", "messages", "message"),
  [
    (CHATML, CHAT[:1], "no assistant text"),
    (CHATML, CHAT[1:], "begins with the assistant"),
    (CHATML.split("{% if add_gen")[0], CHAT, "adds no generation prompt"),
    (CHATML.replace("'<|im_end|>\n'", "'\n'"), CHAT, "none of the model's end tokens"),
    (CHATML.replace("assistant\n", "assistant: "), CHAT, "does not continue"),
    (CHATML.replace("<|im_end|>\n'", "<|im_end|>' + m['content']"), CHAT, "goes on after"),
    (MERGING, TWICE, "message 1: .* merge consecutive"),
    (TAGGED, CHAT[:1], "no assistant text"),
    (TAGGED.replace("{% gen", "{% filter trim %}{% gen").replace(
      "ion %}{% else", "ion %}{% endfilter %}{% else"), [
        CHAT[0], {"role": "assistant", "content": "  4"}], "changes the text"),
  ],
)  # fmt: skip
def test_ambiguous_masks_are_refused(source, messages, message):
  with pytest.raises(ValueError, match=message):
    encode_conversation(template(source), messages)


def test_other_refusals():
  dated = dataclasses.replace(stock("llama3_2"), today=None)
  with pytest.raises(ValueError, match=r"set model\.today"):
    encode_conversation(dated, CHAT)
  with pytest.raises(ValueError, match="last message is of role 'user'"):
    encode_conversation(stock("qwen2_5"), CHAT[:3], last_turn_only=True)
  with pytest.raises(ValueError, match="2 tokens and 1 entries"):
    Example(np.zeros(2, np.int32), np.zeros(1, bool))
  with pytest.raises(ValueError, match="first token"):
    Example(np.zeros(1, np.int32), np.ones(1, bool))
