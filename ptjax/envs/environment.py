"""What an episode is made of: the task, the policy that acts, and the transcript.

An environment is a coroutine `play(task, policy, services) -> Episode`. It awaits
`policy.generate` for actions and whatever else it needs (a sandbox, say) for observations,
so one event loop drives many episodes, and their waits overlap. It never grades: rewards
are a function of the finished episode (`ptjax.rewards`).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from ptjax.core import types
from sandbox_runner import Pool

Split = Literal["train", "heldout"]
Message = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem, reproducible from (domain, seed, split).

  Attributes:
    domain: name of the domain that made it.
    seed: seed it was made from.
    split: `"train"` or `"heldout"`; the two never share a question.
    messages: the conversation so far, `{"role", "content"}` each, before the first action.
    data: what the graders need (expected values included); the policy never sees it.
  """

  domain: str
  seed: int
  split: Split
  messages: tuple[Message, ...]
  data: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Generation:
  """What the policy sampled in one turn, n tokens.

  Attributes:
    tokens: i32[n], the stop token included where the policy sampled one.
    logprobs: f32[n], natural log-probability under the sampling distribution.
    policy_versions: i32[n], version of the weights that sampled each token.
    text: the decoded tokens without stop tokens and stop strings.
    finish_reason: why sampling ended.
    routes: the experts of the context's tokens and of all but the last of these, see
      `rollout.scheduler.Completion`; None where they are not recorded.
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  policy_versions: np.ndarray
  text: str
  finish_reason: types.FinishReason
  routes: np.ndarray | None = None


class Policy(Protocol):
  """A language model together with its tokenizer and chat template."""

  def encode(self, messages: Sequence[Message]) -> np.ndarray:
    """The conversation as i32[n], ending where the assistant's answer begins."""
    ...

  async def generate(self, context: np.ndarray) -> Generation:
    """Samples one turn after `context`, i32[n], every token of the episode so far."""
    ...


@dataclasses.dataclass(frozen=True)
class Services:
  """What environments and graders may call upon.

  Attributes:
    sandbox: the pool that runs untrusted programs; None where no domain needs one.
  """

  sandbox: Pool | None = None


@dataclasses.dataclass(frozen=True)
class Episode:
  """A finished episode, T tokens; the arrays are those of `types.Trajectory`.

  Attributes:
    responses: the text of each action, in order.
    finish_reason: why the last generation ended.
  """

  tokens: np.ndarray
  action_mask: np.ndarray
  behavior_logprobs: np.ndarray
  policy_versions: np.ndarray
  turn_starts: tuple[int, ...]
  responses: tuple[str, ...]
  finish_reason: types.FinishReason
  routes: np.ndarray | None = None

  @property
  def response(self) -> str:
    """The text of the last action: what single-answer graders read."""
    return self.responses[-1]


Play = Callable[[Task, Policy, Services], Awaitable[Episode]]


class Transcript:
  """The growing, append-only token record of an episode.

  Observations and actions alternate in any order; nothing is tokenised twice, so what was
  sampled is exactly what is trained on.
  """

  def __init__(self) -> None:
    self._turns: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    self._responses: list[str] = []
    self._routes: np.ndarray | None = None
    self._finish_reason: types.FinishReason | None = None

  @property
  def tokens(self) -> np.ndarray:
    """i32[T], everything so far: the context of the next action."""
    return np.concatenate([turn[0] for turn in self._turns]).astype(np.int32)

  def observe(self, tokens: np.ndarray) -> None:
    """Appends i32[n] that the policy did not sample (the prompt, a tool's output)."""
    n = len(tokens)
    self._turns.append((tokens, np.zeros(n, bool), np.zeros(n, np.float32), np.full(n, -1)))

  def act(self, generation: Generation) -> None:
    """Appends what the policy sampled; raises ValueError where its arrays disagree."""
    n = len(generation.tokens)
    if len(generation.logprobs) != n or len(generation.policy_versions) != n:
      raise ValueError(
        f"generation has {n} tokens, {len(generation.logprobs)} log-probs and "
        f"{len(generation.policy_versions)} policy versions; they must be equally many"
      )
    self._turns.append(
      (generation.tokens, np.ones(n, bool), generation.logprobs, generation.policy_versions)
    )
    if generation.routes is not None:
      # A token keeps the experts that it had when it was sampled, or read first: those of a later
      # turn's prefill, over the same text, may differ.
      known = 0 if self._routes is None else len(self._routes)
      new = generation.routes[known:]
      self._routes = new if self._routes is None else np.concatenate([self._routes, new])
    self._responses.append(generation.text)
    self._finish_reason = generation.finish_reason

  def episode(self) -> Episode:
    """The finished record; raises ValueError where the policy never acted."""
    if self._finish_reason is None:
      raise ValueError("an episode needs at least one action; call act() before episode()")
    lengths = [len(turn[0]) for turn in self._turns]
    masks, logprobs, versions = (
      np.concatenate([turn[field] for turn in self._turns]) for field in (1, 2, 3)
    )
    return Episode(
      tokens=self.tokens,
      action_mask=masks,
      behavior_logprobs=logprobs.astype(np.float32),
      policy_versions=versions.astype(np.int32),
      turn_starts=tuple(int(start) for start in np.cumsum([0, *lengths[:-1]])),
      responses=tuple(self._responses),
      finish_reason=self._finish_reason,
      routes=_up_to(self._routes, len(self.tokens)),
    )


def _up_to(routes: np.ndarray | None, length: int) -> np.ndarray | None:
  """-1, for no record, on the tokens at the end that were never read."""
  if routes is None:
    return None
  return np.pad(routes, ((0, length - len(routes)), (0, 0), (0, 0)), constant_values=-1)
