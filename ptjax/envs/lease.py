"""The sandbox of one episode: leased when it is first used, given up when the episode ends."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import TypeVar

from sandbox_runner import Limits, Pool, Request, Result, Session, SessionError, Shell

T = TypeVar("T")


class LostError(Exception):
  """The machinery failed under an episode: it is dropped and counted, and says nothing of it."""


class WallClockError(Exception):
  """The wall time of an episode is spent."""


class Clock:
  """Counts the wall time of an episode, but for its waits in a queue."""

  def __init__(self, seconds: float):
    self._deadline = asyncio.get_running_loop().time() + seconds
    self._timeout: asyncio.Timeout | None = None

  @contextlib.asynccontextmanager
  async def running(self) -> AsyncGenerator[None]:
    """Cancels its body at the deadline. Raises WallClockError then."""
    timeout = self._timeout = asyncio.timeout_at(self._deadline)
    try:
      async with timeout:
        yield
    except TimeoutError as error:
      if not timeout.expired():
        raise  # the body's own
      raise WallClockError from error
    finally:
      self._timeout = None

  @contextlib.contextmanager
  def paused(self) -> Generator[None]:
    """What happens inside takes no time of the episode."""
    timeout, start = self._timeout, asyncio.get_running_loop().time()
    if timeout is not None:
      timeout.reschedule(None)
    yield
    self._deadline += asyncio.get_running_loop().time() - start
    if timeout is not None:
      timeout.reschedule(self._deadline)


class EpisodeSandbox:
  """What an episode may run programs in.

  All methods raise LostError where a sandbox is lost, and RequestError for what none could run.
  """

  def __init__(
    self, pool: Pool | None, stack: contextlib.AsyncExitStack, clock: Clock, tenant: str
  ):
    self._pool, self._stack, self._clock, self._tenant = pool, stack, clock, tenant
    self._session: Session | None = None
    self._shell: Shell | None = None

  async def run(
    self,
    argv: tuple[str, ...],
    *,
    files: dict[str, bytes] | None = None,
    stdin: bytes = b"",
    limits: Limits,
  ) -> Result:
    """One program in a sandbox that it has to itself; nothing is left of it."""
    request = Request(argv, files or {}, stdin, limits=limits, tenant=self._tenant)
    return await _kept(self._of_pool().run(request))

  async def session(self, limits: Limits | None = None) -> Session:
    """The episode's own sandbox, whose files persist; `limits` count where it is first used.

    Waiting for one takes no wall time of the episode.
    """
    if self._session is None:
      pool = self._of_pool()
      lease = pool.lease(limits=limits or pool.config.limits, tenant=self._tenant)
      with self._clock.paused():
        self._session = await _kept(self._stack.enter_async_context(lease))
    return self._session

  async def exec(self, argv: tuple[str, ...], *, limits: Limits | None = None, **more) -> Result:
    """A step of the session; see `sandbox_runner.Session.exec`."""
    session = await self.session(limits)
    return await _kept(session.exec(argv, limits=limits, **more))

  async def shell(self, command: str, *, limits: Limits | None = None) -> Result:
    """A command of the session's shell, which remembers directory, variables and functions."""
    session = await self.session()
    if self._shell is None:
      self._shell = session.shell(rows=50, columns=200)
    return await _kept(self._shell.run(command, limits=limits))

  def _of_pool(self) -> Pool:
    if self._pool is None:
      raise ValueError(f"domain {self._tenant} needs a sandbox; set sandboxed=True in its Domain")
    return self._pool


async def _kept(step: Awaitable[T]) -> T:
  """Awaits a step; a lost sandbox becomes LostError, whatever way it is told."""
  try:
    result = await step
  except SessionError as error:
    raise LostError(f"sandbox: {error}") from error
  if isinstance(result, Result) and result.is_infra_failure:
    raise LostError(f"sandbox: {result.outcome} {result.detail}".rstrip())
  return result
