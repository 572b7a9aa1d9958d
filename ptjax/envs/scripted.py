"""Policies that say what they are told to: for solutions, attacks, replays and people."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np

from ptjax.core.types import FinishReason
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.envs.environment import Generation, Message
from ptjax.envs.tool_formats import FENCED, ToolFormat
from ptjax.envs.tools import ToolCall, ToolSpec

_NO_LIMIT = 1 << 30

Said = str | ToolCall
Answer = str | tuple[Said, ...]
"""What a policy says in an episode: in its only turn, or in each of several."""


def say(answer: Answer, form: ToolFormat, specs: Sequence[ToolSpec]) -> list[str]:
  """The text of each turn, its calls written in a model's format.

  Raises ValueError for a call of a tool that there is not.
  """
  names = [spec.name for spec in specs]
  turns = (answer,) if isinstance(answer, str) else answer
  unknown = [t.name for t in turns if isinstance(t, ToolCall) and t.name not in names]
  if unknown:
    raise ValueError(f"the answer calls {unknown[0]!r}; there is {', '.join(names) or 'no tool'}")
  return [turn if isinstance(turn, str) else form.write(turn, specs) for turn in turns]


class LivePolicy:
  """Asks somebody for each turn: `say(context)`, given i32[n] of all that stands before it."""

  def __init__(
    self,
    say: Callable[[np.ndarray], Awaitable[str]],
    tool_format: ToolFormat = FENCED,
    template: ChatTemplate | None = None,
  ):
    """`tool_format` is that of the texts; the template is over bytes unless given."""
    self.template = template or ChatTemplate(byte_tokenizer())
    self.tool_format = tool_format
    self._say = say

  def encode(self, messages: Sequence[Message]) -> np.ndarray:
    return self.template.encode(messages, add_generation_prompt=True)

  def room(self, length: int) -> int:
    del length
    return _NO_LIMIT

  async def generate(
    self, context: np.ndarray, *, max_new_tokens: int | None = None, keep: bool = False
  ) -> Generation:
    del keep
    # Half a character, which Python's text may hold, is what no tokens decode to.
    text = (await self._say(context)).encode(errors="replace").decode()
    tokenizer = self.template.tokenizer
    tokens = np.append(tokenizer.encode(text), np.int32(tokenizer.eos_ids[0]))
    reason = FinishReason.STOP
    if max_new_tokens is not None and len(tokens) > max_new_tokens:
      tokens, reason = tokens[:max_new_tokens], FinishReason.LENGTH
    zeros = np.zeros(len(tokens), np.float32)
    return Generation(tokens, zeros, np.zeros(len(tokens), np.int32), text, reason)


class ScriptedPolicy(LivePolicy):
  """Says one text a turn, and nothing once they are over."""

  def __init__(
    self,
    turns: Iterable[str],
    tool_format: ToolFormat = FENCED,
    template: ChatTemplate | None = None,
    *,
    cut: bool = False,
  ):
    """With `cut`, the last of the turns ends as one does that meets the limit of a generation."""
    texts = list(turns)
    self._left, self._cut = iter(texts), len(texts) if cut else 0
    self._said = 0

    async def following(context: np.ndarray) -> str:
      del context
      return next(self._left, "")

    super().__init__(following, tool_format, template)

  async def generate(
    self, context: np.ndarray, *, max_new_tokens: int | None = None, keep: bool = False
  ) -> Generation:
    made = await super().generate(context, max_new_tokens=max_new_tokens, keep=keep)
    self._said += 1
    if self._said != self._cut or made.finish_reason is FinishReason.LENGTH:
      return made
    return Generation(
      made.tokens[:-1],
      made.logprobs[:-1],
      made.policy_versions[:-1],
      made.text,
      FinishReason.LENGTH,
    )
