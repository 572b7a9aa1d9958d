"""A policy that says what it is told to: for solutions, attacks and replays."""

from collections.abc import Iterable, Sequence

import numpy as np

from ptjax.core.types import FinishReason
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.envs.environment import Generation, Message
from ptjax.envs.tool_formats import FENCED, ToolFormat

_NO_LIMIT = 1 << 30


class ScriptedPolicy:
  """Says one text a turn, and nothing once they are over."""

  def __init__(
    self,
    turns: Iterable[str],
    tool_format: ToolFormat = FENCED,
    template: ChatTemplate | None = None,
  ):
    """`tool_format` is that of the texts; the template is over bytes unless given."""
    self.template = template or ChatTemplate(byte_tokenizer())
    self.tool_format = tool_format
    self._turns = iter(turns)

  def encode(self, messages: Sequence[Message]) -> np.ndarray:
    return self.template.encode(messages, add_generation_prompt=True)

  def room(self, length: int) -> int:
    del length
    return _NO_LIMIT

  async def generate(
    self, context: np.ndarray, *, max_new_tokens: int | None = None, keep: bool = False
  ) -> Generation:
    del context, keep
    text, tokenizer = next(self._turns, ""), self.template.tokenizer
    tokens = np.append(tokenizer.encode(text), np.int32(tokenizer.eos_ids[0]))
    reason = FinishReason.STOP
    if max_new_tokens is not None and len(tokens) > max_new_tokens:
      tokens, reason = tokens[:max_new_tokens], FinishReason.LENGTH
    zeros = np.zeros(len(tokens), np.float32)
    return Generation(tokens, zeros, np.zeros(len(tokens), np.int32), text, reason)
