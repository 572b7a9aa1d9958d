"""Episodes of several turns as coroutines: `async def episode(task, ctx)`.

  async def episode(task, ctx):
    while calls := (await ctx.generate()).calls:
      await ctx.answer(calls)

`ctx.generate` awaits a turn of the policy, `ctx.answer` runs its calls and appends what they gave,
`ctx.observe` appends any other message, `ctx.sandbox` runs programs. The coroutine ends the episode
by returning. A budget that is spent, a turn that was cut or a lost sandbox ends it from within
these calls, each with its own `Ending`. `docs/episodes.md` tells more.
"""

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ptjax.core.types import FinishReason
from ptjax.data.turns import after_turn
from ptjax.envs.environment import (
  Budget,
  Ending,
  Episode,
  Generation,
  Message,
  Policy,
  Services,
  Task,
  Transcript,
)
from ptjax.envs.lease import Clock, EpisodeSandbox, LostError, WallClockError
from ptjax.envs.tool_formats import Calls, Parsed, describe, parse
from ptjax.envs.tools import Malformed, ToolCall, ToolSpec
from sandbox_runner import RequestError

Run = Callable[["Context", Mapping[str, Any]], Awaitable[str]]


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool and what runs it: `(ctx, arguments) -> text of the result`."""

  spec: ToolSpec
  run: Run


@dataclasses.dataclass(frozen=True)
class Turn:
  """One turn of the policy.

  Attributes:
    text: what it wrote, without the token that ends it.
    calls: the tools that it calls, in order, malformed calls among them.
    answer: what stands beside the calls, without reasoning.
  """

  text: str
  calls: Calls
  answer: str


class _EndedError(Exception):
  """Leaves the coroutine of an episode that is over."""

  def __init__(self, ending: Ending):
    super().__init__(ending)
    self.ending = ending


class Context:
  """One episode while it is played; made by `Episodic`."""

  def __init__(
    self,
    task: Task,
    policy: Policy,
    tools: Sequence[Tool],
    budget: Budget,
    sandbox: EpisodeSandbox,
    clock: Clock,
  ):
    self.task, self.sandbox, self.budget = task, sandbox, budget
    self.artifacts: dict[str, Any] = {}
    """What graders are to see of the episode's end, beside its text."""
    self._policy, self._clock = policy, clock
    self._tools = {tool.spec.name: tool for tool in tools}
    self._specs = [tool.spec for tool in tools]
    self._transcript = Transcript()
    self._messages: list[Message] = []
    self._ended = False  # the last turn has sampled its end token
    self._reasoning_open = False
    self._turns = self._sampled = 0
    self._said: list[str] = []
    self._shown: list[str] = []
    self._calls: Counter[str] = Counter()
    self._tool_s = 0.0

  async def generate(self) -> Turn:
    """Awaits a turn of the policy. Ends the episode where it may not have another, or was cut."""
    if not self._messages:
      self._begin()
    if self._turns == self.budget.turns:
      raise _EndedError(Ending.TURNS)
    context = self._transcript.tokens
    limit = self._limit(len(context))
    async with self._clock.running():
      keep = self._turns + 1 < self.budget.turns
      made = await self._policy.generate(context, max_new_tokens=limit, keep=keep)
    return self._act(made, cut_by_budget=limit < self._policy.room(len(context)))

  async def answer(self, calls: Calls) -> None:
    """Runs calls one after the other, and appends their results as the next message."""
    results = [await self.call(call) for call in calls]
    role = "tool" if self._policy.tool_format.native else "user"
    if role == "user":
      results = ["\n\n".join(results)]
    self.observe(*({"role": role, "content": result} for result in results))

  async def call(self, call: ToolCall | Malformed) -> str:
    """What the policy is to read of a call: the tool's result, or what is wrong with the call."""
    if self._calls.total() == self.budget.tool_calls:
      raise _EndedError(Ending.TOOL_CALLS)
    if isinstance(call, Malformed):
      self._calls[str(call.error)] += 1
      return call.observation
    start = time.perf_counter()
    try:
      async with self._clock.running():
        result = await self._tools[call.name].run(self, call.arguments)
    except RequestError as error:  # a NUL in a command, say: the policy's mistake
      self._calls["refused"] += 1
      return f"error: refused: {error}"
    finally:
      self._tool_s += time.perf_counter() - start
    self._calls["run"] += 1
    return result

  def observe(self, *messages: Message) -> None:
    """Appends messages after the policy's turn. Ends the episode where it may not go on.

    Raises ValueError where the policy has had no turn since the last ones: messages that follow
    each other have to be rendered together.
    """
    if not self._messages or self._messages[-1]["role"] != "assistant":
      raise ValueError("observe() follows a turn of the policy; give all messages in one call")
    if self._turns == self.budget.turns:
      raise _EndedError(Ending.TURNS)
    tokens = after_turn(
      self._policy.template,
      self._messages[:-1],
      messages,
      tools=self._schemas,
      ended=self._ended,
    )
    # What nothing can be sampled after is not appended: no row need hold it.
    self._limit(len(self._transcript.tokens) + len(tokens))
    self._transcript.observe(tokens)
    self._messages += messages
    self._shown += [str(message["content"]) for message in messages]

  def episode(self, ending: Ending, detail: str = "") -> Episode:
    """The record of what was played."""
    if not self._messages:
      self._begin()
    return dataclasses.replace(
      self._transcript.episode(ending),
      detail=detail,
      responses=tuple(self._said),
      observations=tuple(self._shown),
      calls=dict(self._calls),
      artifacts=self.artifacts,
      tool_s=self._tool_s,
      tool_format=self._policy.tool_format.name,
      reasoning_open=self._reasoning_open,
    )

  @property
  def _schemas(self) -> list[dict[str, Any]] | None:
    if not self._specs or not self._policy.tool_format.native:
      return None
    return [spec.schema() for spec in self._specs]

  def _begin(self) -> None:
    messages = list(self.task.messages)
    if self._specs and not self._policy.tool_format.native:
      told = describe(self._specs)
      if messages[0]["role"] == "system":
        told = f"{messages.pop(0)['content']}\n\n{told}"
      messages.insert(0, {"role": "system", "content": told})
    template = self._policy.template
    tokens = template.encode(messages, tools=self._schemas, add_generation_prompt=True)
    if self._policy.room(len(tokens)) < 1:
      raise ValueError(
        f"the prompt of domain {self.task.domain}, {len(tokens)} tokens, leaves no room for an "
        f"answer; raise engine.max_length"
      )
    tail = template.tokenizer.decode(tokens[-16:])
    self._reasoning_open = tail.rstrip().endswith("<think>")
    self._transcript.observe(tokens)
    self._messages = messages

  def _limit(self, length: int) -> int:
    """Tokens that the next turn may sample after `length` tokens."""
    limit = self._policy.room(length)
    if self.budget.tokens is not None:
      limit = min(limit, self.budget.tokens - self._sampled)
    if limit < 1:
      raise _EndedError(Ending.TOKENS)
    return limit

  def _act(self, made: Generation, *, cut_by_budget: bool) -> Turn:
    self._transcript.act(made)
    self._turns += 1
    self._sampled += len(made.tokens)
    tokenizer = self._policy.template.tokenizer
    self._ended = len(made.tokens) > 0 and int(made.tokens[-1]) in tokenizer.eos_ids
    # Not the text of the generation: there a stop string is left out, which may close a call.
    text = tokenizer.decode(made.tokens[:-1] if self._ended else made.tokens)
    self._said.append(text)
    if made.finish_reason is FinishReason.LENGTH:
      # A turn that is no more than begun: what it calls is not known.
      raise _EndedError(Ending.TOKENS if cut_by_budget else Ending.LENGTH)
    self._messages.append({"role": "assistant", "content": text})
    parsed = self.parse(text)
    return Turn(text, parsed.calls, parsed.text)

  def parse(self, text: str) -> Parsed:
    """Reads a message as this model's."""
    form = self._policy.tool_format
    return parse(form, text, self._specs, reasoning_open=self._reasoning_open)


Coroutine = Callable[[Task, Context], Awaitable[None]]


async def converse(task: Task, ctx: Context) -> None:
  """The usual episode: calls are answered until the policy writes a message without one."""
  del task
  while calls := (await ctx.generate()).calls:
    await ctx.answer(calls)


@dataclasses.dataclass(frozen=True)
class Episodic:
  """The `Play` of a domain, from a coroutine of several turns.

  Attributes:
    episode: `async (task, ctx) -> None`. Exceptions that it raises are faults, and end the run.
    tools: what the policy is told of, and `ctx.answer` runs.
    budget: what ends it from outside.
    image: of the sandboxes that `ctx.sandbox` uses; "" for the host's Python.
    finish: awaited after the end, whatever the policy spent: takes what graders need into
      `ctx.artifacts`. Not after an ending that is never scored.
  """

  episode: Coroutine
  tools: tuple[Tool, ...] = ()
  budget: Budget = Budget()
  image: str = ""
  finish: Coroutine | None = None

  def __post_init__(self):
    names = [tool.spec.name for tool in self.tools]
    if len(set(names)) < len(names):
      raise ValueError(f"tools {names} must have different names")

  async def __call__(self, task: Task, policy: Policy, services: Services) -> Episode:
    """Plays one episode."""
    clock = Clock(self.budget.wall_s)
    async with contextlib.AsyncExitStack() as stack:
      sandbox = EpisodeSandbox(services.pool(self.image), stack, clock, task.domain)
      ctx = Context(task, policy, self.tools, self.budget, sandbox, clock)
      ending = Ending.DONE
      try:
        try:
          await self.episode(task, ctx)
        except _EndedError as ended:
          ending = ended.ending
        if self.finish is not None:
          await self.finish(task, ctx)
      except WallClockError:
        return ctx.episode(Ending.WALL, f"{self.budget.wall_s:g} s are over")
      except LostError as error:
        return ctx.episode(Ending.LOST, str(error))
      return ctx.episode(ending)
