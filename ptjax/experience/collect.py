"""Episodes: environments and the engine joined in one event loop.

The engine decodes in a worker thread while the loop runs tools and graders, so that
sandbox time overlaps with decoding.
"""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Sequence

import numpy as np

from ptjax.core.types import Outcome, Trajectory
from ptjax.data.chat_template import ChatTemplate
from ptjax.domains.domain import Domain, Grade, grade
from ptjax.envs.environment import Episode, Generation, Message, Services, Task
from ptjax.envs.tool_formats import ToolFormat, format_of
from ptjax.rollout.engine import Engine
from ptjax.rollout.sampling import SamplingConfig
from ptjax.rollout.scheduler import Completion, Request


@dataclasses.dataclass(frozen=True)
class EpisodeSpec:
  """An episode to play.

  Attributes:
    task: what to solve.
    group: episodes of one prompt share it.
    index: unique in the collection; enters the random key of every generation.
  """

  task: Task
  group: int
  index: int


@dataclasses.dataclass(frozen=True)
class Played:
  """A finished and graded episode.

  Attributes:
    spec: what was asked for.
    episode: what happened.
    grade: the verdict.
    several_turns: its domain's episodes may have more than one turn.
    sandbox_s: seconds in which it had a sandbox or waited for one; 0 where its domain has none.
  """

  spec: EpisodeSpec
  episode: Episode
  grade: Grade
  several_turns: bool = False
  sandbox_s: float = 0.0

  def trajectory(self, seed: int) -> Trajectory:
    """The record that trains."""
    e = self.episode
    return Trajectory(
      tokens=e.tokens,
      action_mask=e.action_mask,
      behavior_logprobs=e.behavior_logprobs,
      policy_versions=e.policy_versions,
      turn_starts=e.turn_starts,
      domain=self.spec.task.domain,
      group=self.spec.group,
      seed=seed,
      rewards=self.grade.rewards,
      outcome=self.grade.outcome,
      finish_reason=e.finish_reason,
      passed=self.grade.passed,
      routes=e.routes,
    )

  @property
  def trainable(self) -> bool:
    """Whether it has a reward: scored, or truncated where the domain scores that."""
    return "" in self.grade.rewards and self.grade.outcome in (Outcome.SCORED, Outcome.TRUNCATED)


class EngineLoop:
  """Lets coroutines await completions of one engine."""

  def __init__(self, engine: Engine):
    self._engine = engine
    self._futures: dict[int, asyncio.Future[Completion]] = {}
    self._inbox: list[Request] = []
    self._dropped: list[int] = []
    self._released: list[int] = []

  @property
  def max_length(self) -> int:
    """Tokens of a request of the engine, prompt and completion together."""
    return self._engine.config.max_length

  async def complete(self, request: Request) -> Completion:
    """Submits a request and waits for its end."""
    future = asyncio.get_running_loop().create_future()
    self._futures[request.id] = future
    # The engine may be decoding in its thread: it takes new requests between chunks.
    self._inbox.append(request)
    try:
      return await future
    except asyncio.CancelledError:
      self._dropped.append(request.id)
      raise

  async def drive(self, episodes: asyncio.Future) -> None:
    """Steps the engine until the episodes are done."""
    while not episodes.done():
      for request in self._inbox:
        self._engine.submit(request)
      self._inbox.clear()
      for request_id in self._dropped:
        if self._futures.pop(request_id, None) is not None:
          self._engine.cancel(request_id)
      self._dropped.clear()
      self._forget()
      if self._engine.idle:
        # Every episode waits for its environment or its grader.
        await asyncio.wait([episodes], timeout=0.001)
        continue
      for completion in await asyncio.to_thread(self._engine.step):
        future = self._futures.pop(completion.id)
        if not future.done():  # the turn may have been cancelled meanwhile
          future.set_result(completion)
      await asyncio.sleep(0)

  def release(self, request_id: int) -> None:
    """Nothing will go on from this request."""
    self._released.append(request_id)

  def _forget(self) -> None:
    for request_id in self._released:
      self._engine.release(request_id)
    self._released.clear()

  def withdraw(self) -> None:
    """Cancels what is left in the engine; it must not be stepping."""
    for request_id in self._futures:
      self._engine.cancel(request_id)
    self._forget()


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
  """How the policy answers.

  Attributes:
    sampling: temperature and filters.
    max_new_tokens: limit of one generation.
    stop_strings: texts that end a generation, beside the end tokens of the tokenizer.
    skip_long_prompts: a task whose prompt leaves no room for `max_new_tokens` is replaced by
      another of its domain, rather than ending the run.
  """

  sampling: SamplingConfig = SamplingConfig()
  max_new_tokens: int = 64
  stop_strings: tuple[str, ...] = ()
  skip_long_prompts: bool = False

  def __post_init__(self):
    if self.max_new_tokens < 1:
      raise ValueError(f"policy.max_new_tokens {self.max_new_tokens} must be >= 1")


class EnginePolicy:
  """The `Policy` of one episode: its generations differ from others' only by their key."""

  def __init__(
    self,
    loop: EngineLoop,
    template: ChatTemplate,
    tool_format: ToolFormat,
    config: PolicyConfig,
    seed: int,
    ids,
  ):
    self.template, self.tool_format = template, tool_format
    self._loop, self._config = loop, config
    self._seed, self._ids = seed, ids
    self._kept: int | None = None  # the request that the next turn goes on from

  def encode(self, messages: Sequence[Message]) -> np.ndarray:
    return self.template.encode(messages, add_generation_prompt=True)

  def room(self, length: int) -> int:
    return min(self._config.max_new_tokens, self._loop.max_length - length)

  async def generate(
    self, context: np.ndarray, *, max_new_tokens: int | None = None, keep: bool = False
  ) -> Generation:
    tokenizer = self.template.tokenizer
    request = Request(
      id=next(self._ids),
      prompt=context,
      max_new_tokens=max_new_tokens or self._config.max_new_tokens,
      sampling=self._config.sampling,
      seed=self._seed,
      stop_ids=tokenizer.eos_ids,
      stop_strings=self._config.stop_strings,
      keep=keep,
      continues=self._kept,
    )
    self._kept = request.id if keep else None
    done = await self._loop.complete(request)
    text_tokens = done.tokens
    if len(text_tokens) and int(text_tokens[-1]) in tokenizer.eos_ids:
      text_tokens = text_tokens[:-1]
    text = _before_stop(tokenizer.decode(text_tokens), self._config.stop_strings)
    return Generation(
      done.tokens, done.logprobs, done.policy_versions, text, done.finish_reason, done.routes
    )

  def release(self) -> None:
    """The episode is over: nothing of it is kept any longer."""
    if self._kept is not None:
      self._loop.release(self._kept)


def _before_stop(text: str, stops: Sequence[str]) -> str:
  cuts = [i for i in (text.find(stop) for stop in stops) if i >= 0]
  return text[: min(cuts)] if cuts else text


async def collect(
  engine: Engine,
  template: ChatTemplate,
  domains: dict[str, Domain],
  specs: Sequence[EpisodeSpec],
  services: Services,
  config: PolicyConfig,
  seed: int,
) -> list[Played]:
  """Plays and grades all episodes; results in the order of `specs`.

  What an episode samples depends on `seed`, its `index` and the weights, not on the other
  episodes or on the order in which they end. The first error of an environment or grader
  that is not a typed scoring failure ends the collection.
  """
  loop, tool_format = EngineLoop(engine), format_of(template)
  stride = len(specs) and max(spec.index for spec in specs) + 1

  async def one(spec: EpisodeSpec) -> Played:
    domain = domains[spec.task.domain]
    ids = itertools.count(spec.index, stride)  # turn n of the episode has the n-th of them
    policy = EnginePolicy(loop, template, tool_format, config, seed, ids)
    try:
      episode = await domain.play(spec.task, policy, services)
    finally:
      policy.release()
    start = time.perf_counter()
    verdict = await grade(domain, spec.task, episode, services)
    graded = time.perf_counter() - start
    sandbox_s = episode.tool_s + graded if domain.sandboxed else 0.0
    return Played(spec, episode, verdict, domain.budget is not None, sandbox_s)

  tasks = [asyncio.ensure_future(one(spec)) for spec in specs]
  episodes = asyncio.gather(*tasks)
  driver = asyncio.ensure_future(loop.drive(episodes))
  try:
    await asyncio.wait([episodes, driver], return_when=asyncio.FIRST_COMPLETED)
    if driver.done():
      driver.result()  # a fault of the engine surfaces here
    return await episodes
  finally:
    for task in tasks:
      task.cancel()
    # The driver ends by itself after the step that its thread is in.
    await asyncio.gather(*tasks, episodes, driver, return_exceptions=True)
    loop.withdraw()
