"""Records of supervised data to training examples.

A record holds `messages`, a list of `{"role", "content"}` with optional `tool_calls` and
whatever else the model's template reads, and perhaps `tools`, a list of JSON schemas. Or it holds
`inputs` and `targets` as seqio tasks have them: two texts, a question and its answer, or two lists
of token ids, which are trained as they are.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ptjax.data.assistant_mask import ASSISTANT, Example, encode_conversation
from ptjax.data.chat_template import ChatTemplate, Message
from ptjax.data.sources import RandomAccess, Record

Turns = Literal["together", "apart"]


def conversation_of(record: Record) -> tuple[Sequence[Message], Sequence[dict[str, Any]] | None]:
  """(messages, tools) of a record.

  Raises:
    ValueError: the record has no conversation, or one of another form.
  """
  if "messages" not in record and {"inputs", "targets"} <= record.keys():
    question, answer = record["inputs"], record["targets"]
    if not isinstance(question, str) or not isinstance(answer, str):
      raise ValueError(f"inputs and targets must be texts: {_excerpt(record)}")
    return (
      {"role": "user", "content": question},
      {"role": ASSISTANT, "content": answer},
    ), None
  messages = record.get("messages")
  if not isinstance(messages, list) or not messages:
    raise ValueError(f"a record needs messages, or inputs and targets: {_excerpt(record)}")
  for message in messages:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
      raise ValueError(f"a message needs a role: {_excerpt(message)}")
  return [_without_nulls(m) for m in messages], record.get("tools") or None


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
  """Parquet fills absent fields with null, which templates take for present ones."""
  return {key: value for key, value in message.items() if value is not None or key == "content"}


def _excerpt(value: Any) -> str:
  return json.dumps(value, ensure_ascii=False, default=str)[:120]


@dataclasses.dataclass(frozen=True)
class Encode:
  """Makes an `Example` of a record; picklable.

  Attributes:
    chat: tokenizer and template.
    turns: train all assistant turns of a conversation together, or the last alone.
    max_length: longer conversations are dropped (None is returned); None keeps all.
  """

  chat: ChatTemplate
  turns: Turns = "together"
  max_length: int | None = None

  def __call__(self, record: Record) -> Example | None:
    if isinstance(record.get("targets"), list):
      example = _example_of_ids(record, self.chat.tokenizer.vocab_size)
    else:
      example = self._conversation(record)
    if self.max_length is not None and len(example.tokens) > self.max_length:
      return None
    return example

  def _conversation(self, record: Record) -> Example:
    messages, tools = conversation_of(record)
    last = self.turns == "apart"
    try:
      return encode_conversation(self.chat, messages, tools=tools, last_turn_only=last)
    except ValueError as error:
      raise ValueError(f"{error} (conversation: {_excerpt(messages)})") from error


def _example_of_ids(record: Record, vocab_size: int) -> Example:
  """`inputs` (may be absent) then `targets`, which are trained but for a first token."""
  inputs, targets = record.get("inputs", []), record["targets"]
  tokens = np.asarray([*inputs, *targets])
  good = len(tokens) and tokens.dtype.kind == "i" and 0 <= tokens.min() <= tokens.max() < vocab_size
  if not good:
    raise ValueError(
      f"inputs and targets must be token ids below {vocab_size}, of the model's own vocabulary: "
      f"{_excerpt(record)}"
    )
  return Example(tokens.astype(np.int32), np.arange(len(tokens)) >= max(len(inputs), 1))


class TurnsApart:
  """A source whose records are cut after each assistant turn: one record a turn.

  Making it reads the source once, to count the turns; 8 bytes a record stay in memory.
  """

  def __init__(self, records: RandomAccess):
    self._records = records
    counts = [len(self._turns(i)) for i in range(len(records))]
    self._ends = np.cumsum(counts)

  def _turns(self, number: int) -> list[int]:
    messages, _ = conversation_of(self._records[number])
    return [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]

  def __len__(self) -> int:
    return int(self._ends[-1]) if len(self._ends) else 0

  def __getitem__(self, index: int) -> Record:
    if not 0 <= index < len(self):
      raise IndexError(f"turn {index} of {len(self)}")
    number = int(np.searchsorted(self._ends, index, side="right"))
    messages, tools = conversation_of(self._records[number])
    turns = self._turns(number)
    turn = turns[index - int(self._ends[number]) + len(turns)]
    return {"messages": list(messages[: turn + 1]), "tools": tools}

  def __repr__(self) -> str:
    return f"TurnsApart({self._records!r})"
