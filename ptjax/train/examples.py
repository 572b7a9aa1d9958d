"""The order of supervised examples in a run, and what is held out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ptjax.data.chat_template import Message

Item = TypeVar("Item")
Out_co = TypeVar("Out_co", covariant=True)


class Source(Protocol[Out_co]):
  """Examples whose place is a small JSON record, saved with each checkpoint.

  `data.pipeline.Stream` is one.
  """

  def take(self, count: int) -> list[Out_co]:
    """The next examples, `count` at most."""
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
  return json.dumps([[m["role"], m.get("content")] for m in messages[:first]])
