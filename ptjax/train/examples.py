"""Supervised data: conversations to token rows, the order of a run, and what is held out."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ptjax.data.chat_template import ChatTemplate, Message

Item = TypeVar("Item")
Out_co = TypeVar("Out_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class Example:
  """Tokens and which of them are trained on.

  Attributes:
    tokens: i32[T].
    action_mask: bool[T], true for the assistant's tokens.
    group: examples of one group share the tokens before their first action (see `pack`).
  """

  tokens: np.ndarray
  action_mask: np.ndarray
  group: int = 0

  @property
  def num_actions(self) -> int:
    return int(self.action_mask.sum())


class Source(Protocol[Out_co]):
  """Endless examples whose place is a small JSON record, saved with each checkpoint."""

  def take(self, count: int) -> list[Out_co]:
    """The next examples."""
    ...

  def state(self) -> dict[str, Any]:
    """What `restore` needs to go on from here."""
    ...

  def restore(self, state: Mapping[str, Any]) -> None: ...


class Shuffled(Generic[Item]):
  """All items in a new order every pass; each item once a pass, also across batches.

  Raises:
    ValueError: no items.
  """

  def __init__(self, items: Sequence[Item], seed: int):
    if not items:
      raise ValueError("no training examples are left; check data.path and data.heldout")
    self._items, self._seed, self._next = items, seed, 0

  def take(self, count: int) -> list[Item]:
    """The next `count` items; a batch may cross the end of a pass."""
    out = []
    while len(out) < count:
      epoch, start = divmod(self._next, len(self._items))
      order = np.random.default_rng([self._seed, epoch]).permutation(len(self._items))
      some = order[start : start + count - len(out)]
      out += [self._items[i] for i in some]
      self._next += len(some)
    return out

  def state(self) -> dict[str, Any]:
    return {"next": self._next, "size": len(self._items)}

  def restore(self, state: Mapping[str, Any]) -> None:
    """Raises ValueError where the data has another size than when the state was saved."""
    if state["size"] != len(self._items):
      raise ValueError(
        f"the checkpoint was made with {state['size']} training examples, now there are "
        f"{len(self._items)}; use the same data, or a new workdir"
      )
    self._next = state["next"]


def is_heldout(prompt: str, share: float) -> bool:
  """Whether a prompt belongs to the held-out share, by its hash.

  All examples of a prompt fall on one side, and adding data moves none of the others.
  """
  digest = hashlib.sha256(prompt.encode()).digest()
  return int.from_bytes(digest[:8]) < share * 2**64


def prompt_key(messages: Sequence[Message]) -> str:
  """What `is_heldout` takes of a conversation: the messages before the first answer."""
  first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
  return json.dumps([[m["role"], m["content"]] for m in messages[:first]])


def conversation_example(
  template: ChatTemplate, messages: Sequence[Message], *, last_only: bool = False, group: int = 0
) -> Example:
  """A conversation whose assistant turns are trained on, each up to its end token.

  A turn's tokens are those by which rendering the conversation with the turn exceeds rendering
  it without, with the header of the assistant's turn: exactly what the sampler would produce.

  Args:
    template: of the model.
    messages: at least one of the assistant.
    last_only: train on the last message alone, which then must be the assistant's.
    group: see `Example`.

  Raises:
    ValueError: no assistant turn, or a template under which a turn is no continuation.
  """
  turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
  if last_only:
    turns = [i for i in turns if i == len(messages) - 1]
  if not turns or turns[0] == 0:
    raise ValueError(
      f"a conversation needs an assistant message after the first one, got roles "
      f"{[m['role'] for m in messages]}"
    )
  tokens = template.encode(messages[: turns[-1] + 1])
  mask = np.zeros(len(tokens), bool)
  for turn in turns:
    before = template.encode(messages[:turn], add_generation_prompt=True)
    after = template.encode(messages[: turn + 1])
    if not np.array_equal(after[: len(before)], before) or not np.array_equal(
      tokens[: len(after)], after
    ):
      raise ValueError(
        f"the chat template changes earlier text when message {turn} is added, so the assistant's "
        f"tokens cannot be told from the prompt's; use a template that only appends"
      )
    ends = [
      j for j in range(len(before), len(after)) if int(after[j]) in template.tokenizer.eos_ids
    ]
    mask[len(before) : (ends[-1] + 1 if ends else len(after))] = True
  stop = int(np.flatnonzero(mask)[-1]) + 1  # a newline after the end token predicts nothing
  return Example(tokens[:stop], mask[:stop], group)
