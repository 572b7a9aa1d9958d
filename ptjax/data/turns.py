"""What stands between two turns of the model, as tokens: nothing sampled is tokenised again.

The template is asked what it renders around a turn and after it. The turn itself is a mark in that
text: what follows the mark, from the token that ends the turn on, is the continuation. So the
tokens of an episode are those that were sampled, and between them the template's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptjax.data.chat_template import ChatTemplate, Message, private_characters


def after_turn(
  chat: ChatTemplate,
  history: Sequence[Message],
  new: Sequence[Message],
  *,
  tools: Sequence[Mapping[str, Any]] | None = None,
  ended: bool = True,
) -> np.ndarray:
  """Tokens from the end of the assistant's turn to where its next one begins, i32[n].

  Args:
    chat: tokenizer and template.
    history: the conversation up to the turn, without it.
    new: the messages that follow it, at least one; control text in them stays ordinary text.
    tools: as the conversation was begun with.
    ended: the turn has sampled its end token. Where it was cut, or ended by a text, that token is
      the first of the result.

  Raises:
    ValueError: the template refuses these roles, or does not say where the turn ends.
  """
  if not new:
    raise ValueError("nothing follows the turn; pass a message")
  quoted = chat.quote([*history, *new], tools)
  (mark,) = private_characters([quoted.messages, quoted.tools, quoted.mark], 1)
  before, after = quoted.messages[: len(history)], quoted.messages[len(history) :]
  turn = {"role": "assistant", "content": mark}
  text = chat.render([*before, turn, *after], tools=quoted.tools, add_generation_prompt=True)
  if text.count(mark) != 1:
    raise ValueError(
      f"the chat template renders the assistant's message {text.count(mark)} times where messages "
      f"of {[m['role'] for m in new]} follow; episodes of several turns need it once"
    )
  rest, end = text.partition(mark)[2], ""
  for piece, token in chat.tokenizer.segments(rest):
    end += piece
    if token in chat.tokenizer.eos_ids:
      break
    if token is not None or piece.strip():
      raise ValueError(f"the chat template goes on after the assistant's text with {piece[:40]!r}")
  else:
    ends = [chat.tokenizer.decode([i]) for i in chat.tokenizer.eos_ids]
    raise ValueError(f"the chat template ends the assistant's turn by none of {ends}")
  return quoted.encode(rest[len(end) :] if ended else rest)
