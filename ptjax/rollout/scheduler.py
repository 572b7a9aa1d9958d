"""Which request sits in which slot. Pure Python: no arrays, no clock."""

import collections
import dataclasses

import numpy as np

from ptjax.core.types import FinishReason
from ptjax.data.tokenizer import StopMatcher, Tokenizer
from ptjax.rollout.sampling import SamplingConfig


@dataclasses.dataclass(frozen=True)
class Request:
  """One generation.

  Attributes:
    id: unique among the live requests of an engine; enters the random key.
    prompt: i32[n], n >= 1.
    max_new_tokens: limit of sampled tokens, the stop token included.
    sampling: temperature and filters.
    seed: with `id` and the position it decides every random number of the request.
    stop_ids: tokens that end it; the stop token is part of the completion.
    stop_strings: texts that end it; the token that completes one is the last.
    keep: another request will go on from this one: keep its keys and values, if there is room.
    continues: id of the request, made with `keep`, that this one goes on from: its prompt begins
      with the other's prompt and completion. None for a new one.
  """

  id: int
  prompt: np.ndarray
  max_new_tokens: int
  sampling: SamplingConfig = SamplingConfig()
  seed: int = 0
  stop_ids: tuple[int, ...] = ()
  stop_strings: tuple[str, ...] = ()
  keep: bool = False
  continues: int | None = None

  def __post_init__(self):
    if len(self.prompt) < 1:
      raise ValueError(f"request {self.id} has an empty prompt; it needs at least one token")
    for name in ("seed", "id"):
      if not 0 <= getattr(self, name) < 2**32:
        raise ValueError(
          f"request {self.id}: {name} {getattr(self, name)} must be in [0, 2^32): it makes a key"
        )
    if "" in self.stop_strings:
      raise ValueError(f"request {self.id}: an empty stop string ends nothing; remove it")
    if self.max_new_tokens < 1:
      raise ValueError(f"request {self.id}: max_new_tokens {self.max_new_tokens} must be >= 1")


@dataclasses.dataclass(frozen=True)
class Completion:
  """What a request came to, n tokens.

  Attributes:
    id: of the request.
    tokens: i32[n], a stop token included.
    logprobs: f32[n], under the distribution that each token was drawn from.
    policy_versions: i32[n], version of the weights behind each token.
    finish_reason: STOP by a stop token or string, LENGTH by a limit.
    routes: int[p + n - 1, L, X], the experts of all tokens but the last, those of the prompt of p
      tokens included, in the L layers that have experts; None where they are not recorded.
  """

  id: int
  tokens: np.ndarray
  logprobs: np.ndarray
  policy_versions: np.ndarray
  finish_reason: FinishReason
  routes: np.ndarray | None = None


class Running:
  """A request in its slot, and what it has sampled so far."""

  def __init__(self, request: Request, tokenizer: Tokenizer | None):
    self.request = request
    self.tokens: list[int] = []
    self.logprobs: list[float] = []
    self.versions: list[int] = []
    self.routes: list[np.ndarray] = []  # of the prompt's first tokens, then of single tokens
    self._matcher = None
    if request.stop_strings:
      assert tokenizer is not None  # the engine has refused such a request
      self._matcher = StopMatcher(tokenizer, request.stop_strings)

  def extend(self, tokens, logprobs, version: int, routes=None) -> FinishReason | None:
    """Appends a chunk up to where the request ends; says why it ended, if it did."""
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
      if routes is not None:
        self.routes.append(routes[i : i + 1])
      self.tokens.append(int(token))
      self.logprobs.append(float(logprob))
      self.versions.append(version)
      if self.tokens[-1] in self.request.stop_ids:
        return FinishReason.STOP
      if self._matcher is not None and self._matcher.push(self.tokens[-1]):
        return FinishReason.STOP
      if len(self.tokens) == self.request.max_new_tokens:
        return FinishReason.LENGTH
    return None

  def completion(self, reason: FinishReason) -> Completion:
    return Completion(
      self.request.id,
      np.asarray(self.tokens, np.int32),
      np.asarray(self.logprobs, np.float32),
      np.asarray(self.versions, np.int32),
      reason,
      np.concatenate(self.routes) if self.routes else None,
    )


class Scheduler:
  """First come, first served over a fixed number of slots."""

  def __init__(self, num_slots: int):
    self._waiting: collections.deque[Request] = collections.deque()
    self._slots: list[Running | None] = [None] * num_slots

  def submit(self, request: Request) -> None:
    """Queues a request; raises ValueError where its id is taken."""
    live = {r.id for r in self._waiting} | {r.request.id for _, r in self.running()}
    if request.id in live:
      raise ValueError(f"request id {request.id} is already in use; ids must be unique")
    self._waiting.append(request)

  def admit(self, tokenizer: Tokenizer | None) -> list[tuple[int, Request]]:
    """Moves waiting requests into free slots; returns the newly filled ones."""
    filled = []
    for slot, occupant in enumerate(self._slots):
      if occupant is None and self._waiting:
        request = self._waiting.popleft()
        self._slots[slot] = Running(request, tokenizer)
        filled.append((slot, request))
    return filled

  def running(self) -> list[tuple[int, Running]]:
    """Occupied slots, in order."""
    return [(i, r) for i, r in enumerate(self._slots) if r is not None]

  def free(self, slot: int) -> None:
    self._slots[slot] = None

  def cancel(self, request_id: int) -> int | None:
    """Forgets a request; returns the slot that it held, if it held one."""
    self._waiting = collections.deque(r for r in self._waiting if r.id != request_id)
    for slot, running in self.running():
      if running.request.id == request_id:
        self.free(slot)
        return slot
    return None

  @property
  def idle(self) -> bool:
    """Nothing waits and nothing runs."""
    return not self._waiting and not self.running()
