"""What an episode is made of: the task, the policy that acts, and the transcript.

An environment is a coroutine `play(task, policy, services) -> Episode`. It awaits
`policy.generate` for actions and whatever else it needs (a sandbox, say) for observations,
so one event loop drives many episodes, and their waits overlap. It never grades: rewards
are a function of the finished episode (`ptjax.rewards`). Episodes of several turns are made by
`context.Episodic`, which keeps their records and budgets.
"""

import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from ptjax.core import types
from ptjax.data.chat_template import ChatTemplate
from ptjax.envs.tool_formats import ToolFormat
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

  @property
  def template(self) -> ChatTemplate: ...

  @property
  def tool_format(self) -> ToolFormat:
    """How this model writes calls of tools."""
    ...

  def encode(self, messages: Sequence[Message]) -> np.ndarray:
    """The conversation as i32[n], ending where the assistant's answer begins."""
    ...

  def room(self, length: int) -> int:
    """Tokens that a turn after `length` tokens may sample; below 1 where it has no room."""
    ...

  async def generate(
    self, context: np.ndarray, *, max_new_tokens: int | None = None, keep: bool = False
  ) -> Generation:
    """Samples one turn after `context`, i32[n], every token of the episode so far.

    Args:
      context: what the turn before was given and sampled, and what has come since.
      max_new_tokens: limit of this turn; None takes the policy's own.
      keep: another turn of this episode may follow.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Services:
  """What environments and graders may call upon.

  Attributes:
    sandbox: the pool that runs untrusted programs; None where no domain needs one.
    images: pools whose sandboxes have an image, by its name.
  """

  sandbox: Pool | None = None
  images: Mapping[str, Pool] = dataclasses.field(default_factory=dict)

  def pool(self, image: str) -> Pool | None:
    """The pool of an image; that of the host's Python for ""."""
    return self.images.get(image) if image else self.sandbox


class Ending(enum.StrEnum):
  """Why an episode of several turns is over."""

  DONE = "done"  # the environment says so
  LENGTH = "length"  # a turn met the limit of one generation
  TURNS = "turns"
  TOKENS = "tokens"  # no room for another, in the budget or in the engine
  TOOL_CALLS = "tool_calls"
  WALL = "wall"  # the clock, which says nothing of the policy: never scored
  LOST = "lost"  # the machinery failed: never scored


@dataclasses.dataclass(frozen=True)
class Budget:
  """What an episode may use.

  Attributes:
    turns: generations.
    tokens: sampled tokens of all turns together; None leaves it to the policy's own limits.
    tool_calls: calls of tools, malformed ones included.
    wall_s: seconds, waits for a sandbox left out.
  """

  turns: int = 8
  tokens: int | None = None
  tool_calls: int = 16
  wall_s: float = 600.0

  def __post_init__(self):
    for name in ("turns", "tokens", "tool_calls", "wall_s"):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f"budget.{name} {value} must be above 0")

  def sampled(self, max_new_tokens: int) -> int:
    """Tokens that an episode samples at most, of turns of `max_new_tokens`."""
    most = self.turns * max_new_tokens
    return most if self.tokens is None else min(most, self.tokens)


@dataclasses.dataclass(frozen=True)
class Episode:
  """A finished episode, T tokens; the arrays are those of `types.Trajectory`.

  Attributes:
    responses: the text of each action, in order.
    finish_reason: why the last generation ended.
    ending: why the episode did.
    detail: one line on an ending that is not the policy's doing; "" for others.
    observations: the text of each message between the actions, in order.
    calls: number of tool calls by what became of them: `run`, `refused`, or an error of
      `tools.CallError`.
    artifacts: what the environment leaves for the graders.
    tool_s: seconds spent in tools.
    tool_format: name of the format of its calls, see `tool_formats.FORMATS`; "" for one turn.
    reasoning_open: the prompt has opened the reasoning of each turn, so that its text has no
      `<think>` of its own.
  """

  tokens: np.ndarray
  action_mask: np.ndarray
  behavior_logprobs: np.ndarray
  policy_versions: np.ndarray
  turn_starts: tuple[int, ...]
  responses: tuple[str, ...]
  finish_reason: types.FinishReason
  routes: np.ndarray | None = None
  ending: Ending = Ending.DONE
  detail: str = ""
  observations: tuple[str, ...] = ()
  calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
  artifacts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  tool_s: float = 0.0
  tool_format: str = ""
  reasoning_open: bool = False

  @property
  def response(self) -> str:
    """The text of the last action, which single-answer graders read; "" where there is none."""
    return self.responses[-1] if self.responses else ""


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

  def episode(self, ending: Ending = Ending.DONE) -> Episode:
    """The finished record.

    Raises ValueError where the policy never acted, unless that is for the clock or the machinery.
    """
    finish_reason = self._finish_reason
    if finish_reason is None:
      if ending not in (Ending.WALL, Ending.LOST):
        raise ValueError("an episode needs at least one action; call act() before episode()")
      finish_reason = types.FinishReason.CANCELLED
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
      finish_reason=finish_reason,
      ending=ending,
      routes=_up_to(self._routes, len(self.tokens)),
    )


def _up_to(routes: np.ndarray | None, length: int) -> np.ndarray | None:
  """-1, for no record, on the tokens at the end that were never read."""
  if routes is None:
    return None
  return np.pad(routes, ((0, length - len(routes)), (0, 0), (0, 0)), constant_values=-1)
