"""Conversations to training examples: the tokens, and which of them the model has to produce.

The mask is derived from the template itself. Where it has `{% generation %}` tags, they say what
is trained. Otherwise the template is asked, for each assistant message, what it renders before
that turn with the generation prompt; the turn is what follows up to the token that ends it,
which is exactly what the engine would have the model generate. Nothing is searched for in the
text of messages, so a template may trim, add a default system prompt or merge tool results.

A template that renders a turn differently once later messages follow (Qwen3 drops the reasoning
of earlier turns) has no mask for all turns at once: that is an error here. `one_turn_each` cuts
such a conversation into examples that are exact.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ptjax.data.chat_template import ChatTemplate, Message, Quoted, private_characters

ASSISTANT = "assistant"

_GENERATION_TAG = re.compile(r"{%-?\s*generation\s*-?%}")


@dataclasses.dataclass(frozen=True)
class Example:
  """One document to train on.

  Attributes:
    tokens: i32[T].
    action_mask: bool[T], true where the token is to be predicted from those before it. Never
      true at 0.
    group: documents of one group share the tokens before their first action, see
      `experience.packing`.
  """

  tokens: np.ndarray
  action_mask: np.ndarray
  group: int = 0

  def __post_init__(self):
    if len(self.tokens) != len(self.action_mask):
      raise ValueError(
        f"{len(self.tokens)} tokens and {len(self.action_mask)} entries of action_mask"
      )
    if len(self.action_mask) and self.action_mask[0]:
      raise ValueError("the first token of a document cannot be predicted; action_mask[0] is true")

  @property
  def num_actions(self) -> int:
    return int(self.action_mask.sum())


class _Span(NamedTuple):
  """Characters [start, stop) of the rendered conversation that the model produces."""

  start: int
  stop: int


def encode_conversation(
  chat: ChatTemplate,
  messages: Sequence[Message],
  *,
  tools: Sequence[Mapping[str, Any]] | None = None,
  last_turn_only: bool = False,
) -> Example:
  """Tokens of a conversation and the mask of its assistant turns.

  The text is cut where a turn begins and ends before it is tokenised. So the tokens before a
  turn are those of `chat.encode(messages[:i], add_generation_prompt=True)`, as at sampling, and
  no token straddles the edge of the mask.

  Args:
    chat: tokenizer and template.
    messages: in order; at least one is the assistant's.
    tools: JSON schemas, for templates that show them.
    last_turn_only: train on the last message only, which must be the assistant's.

  Raises:
    ValueError: the template cannot render the conversation, marks nothing, does not end the
      assistant's turns, or renders a turn differently with and without what follows.
  """
  source = chat.tokenizer.chat_template or ""
  if chat.today is None and "strftime_now" in source:
    raise ValueError(
      "the chat template prints the date, so an example would depend on when it is read; set "
      "model.today (ChatTemplate.today)"
    )
  if last_turn_only and messages and messages[-1]["role"] != ASSISTANT:
    raise ValueError(f"the last message is of role {messages[-1]['role']!r}, not {ASSISTANT!r}")
  quoted = chat.quote(messages, tools)
  text = chat.render(quoted.messages, tools=quoted.tools)
  if _GENERATION_TAG.search(source):
    spans = _tagged_spans(chat, quoted, text)[-1 if last_turn_only else 0 :]
  else:
    turns = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
    spans = [_turn_span(chat, quoted, text, i) for i in turns[-1 if last_turn_only else 0 :]]
  if not any(stop > start for start, stop in spans):
    raise ValueError(f"no {ASSISTANT} text to train on in {len(messages)} messages")
  return _cut(quoted, text, spans)


def one_turn_each(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
  """For each assistant message the conversation up to it, to be encoded by its last turn only."""
  for i, message in enumerate(messages):
    if message["role"] == ASSISTANT:
      yield messages[: i + 1]


def _cut(quoted: Quoted, text: str, spans: Sequence[_Span]) -> Example:
  tokens, mask, end = [], [], 0
  for start, stop in spans:
    tokens += [quoted.encode(text[end:start]), quoted.encode(text[start:stop])]
    mask += [np.zeros(len(tokens[-2]), bool), np.ones(len(tokens[-1]), bool)]
    end = stop
  rest = quoted.encode(text[end:])
  return Example(
    np.concatenate([*tokens, rest]), np.concatenate([*mask, np.zeros(len(rest), bool)])
  )


def _turn_span(chat: ChatTemplate, quoted: Quoted, text: str, index: int) -> _Span:
  """The turn of message `index`: from its generation prompt to its end token, inclusive."""
  if index == 0:
    raise ValueError(f"the conversation begins with the {ASSISTANT}; nothing prompts its turn")
  before, until = quoted.messages[:index], quoted.messages[: index + 1]
  prompt = chat.render(before, tools=quoted.tools, add_generation_prompt=True)
  if prompt == chat.render(before, tools=quoted.tools):
    raise ValueError(
      "the chat template adds no generation prompt, so where a turn begins is ambiguous; mark "
      "the assistant's text in it with {% generation %}"
    )
  alone = chat.render(until, tools=quoted.tools)
  if not alone.startswith(prompt):
    raise ValueError(
      f"message {index}: the chat template does not continue the generation prompt "
      f"{prompt[-40:]!r} but renders {_difference(prompt, alone)!r}, so its mask is ambiguous"
    )
  stop = len(prompt) + _end_of_turn(chat, alone[len(prompt) :], index)
  if not text.startswith(alone[:stop]):
    raise ValueError(
      f"message {index}: the chat template renders it differently once later messages follow "
      f"({_difference(alone[:stop], text)!r}), so the mask of this conversation is ambiguous; "
      f"train each turn by itself (turns='apart'), or merge consecutive {ASSISTANT} messages"
    )
  return _Span(len(prompt), stop)


def _end_of_turn(chat: ChatTemplate, turn: str, index: int) -> int:
  """Length of the turn with the token that ends it."""
  tokenizer = chat.tokenizer
  length = 0
  for piece, token in tokenizer.segments(turn):
    length += len(piece)
    if token in tokenizer.eos_ids:
      break
  else:
    ends = [tokenizer.decode([i]) for i in tokenizer.eos_ids]
    raise ValueError(
      f"message {index}: the chat template ends the turn by {turn[-20:]!r}, none of the model's "
      f"end tokens {ends}, so the model would not learn to stop; add the right one to eos_token_id "
      f"in generation_config.json"
    )
  rest = [piece for piece, token in tokenizer.segments(turn[length:]) if token is None]
  if "".join(rest).strip():
    raise ValueError(
      f"message {index}: the chat template goes on after {turn[:length][-20:]!r} with "
      f"{turn[length : length + 40]!r}, so where the turn ends is ambiguous"
    )
  return length


def _tagged_spans(chat: ChatTemplate, quoted: Quoted, text: str) -> list[_Span]:
  """What `{% generation %}` encloses, as places in `text`."""
  begin, end = private_characters([quoted.messages, quoted.tools], 2)
  marked = chat.render(quoted.messages, tools=quoted.tools, generation_marks=(begin, end))
  spans: list[_Span] = []
  start, length = None, 0
  for piece in re.split(f"([{begin}{end}])", marked):
    if piece == begin and start is None:
      start = length
    elif piece == end and start is not None:
      spans.append(_Span(start, length))
      start = None
    elif piece in (begin, end):
      raise ValueError("{% generation %} blocks of the chat template are nested")
    else:
      length += len(piece)
  if marked.replace(begin, "").replace(end, "") != text or start is not None:
    raise ValueError(
      "the chat template changes the text inside {% generation %} afterwards (a filter over the "
      "block?), so its mask is ambiguous; put the tags around what is printed last"
    )
  return spans


def _difference(expected: str, found: str) -> str:
  """The text of `found` where it departs from `expected`."""
  same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
  at = min(len(expected), len(found)) if same is None else same
  return found[max(0, at - 20) : at + 20]
