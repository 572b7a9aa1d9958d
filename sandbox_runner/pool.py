"""The pool: warm sandboxes, one request in each at a time, infra failures retried once."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field

from sandbox_runner.audit import Audit
from sandbox_runner.backends.base import Backend
from sandbox_runner.detect import choose_backend
from sandbox_runner.journal import Journal, reap
from sandbox_runner.sandbox import Sandbox
from sandbox_runner.types import (
  Limits,
  Outcome,
  Request,
  RequestError,
  Result,
  SandboxLost,
  check_request,
)

log = logging.getLogger("sandbox_runner")
PRELOAD = (
  *("bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
  *("functools", "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics"),
  *("string", "traceback", "typing"),
)


@dataclass(frozen=True)
class PoolConfig:
  """Configuration of a `Pool`.

  Attributes:
    backend: "auto" (docker if a daemon answers and has an image, else bwrap), "bwrap" or "docker".
    size: sandboxes, and so requests that run at the same time.
    audit_path: file to which one JSON line is appended for each request; None for none.
    image: for bwrap an unpacked root tree ("" for the host's /usr), for docker an image name.
    runtime: of docker; "auto" takes runsc if the daemon has it, else runc.
    fork_python: run `python3 FILE` and `python3 -c CODE` by a fork of a warm interpreter.
    preload: modules that this interpreter holds ready.
    runs_per_sandbox: after so many requests a sandbox is replaced.
    limits: those for which docker's sandboxes are made in advance.
  """

  backend: str = "auto"
  size: int = 2
  audit_path: str | None = None
  image: str = ""
  runtime: str = "auto"
  fork_python: bool = True
  preload: tuple[str, ...] = PRELOAD
  runs_per_sandbox: int = 1000
  limits: Limits = field(default_factory=Limits)

  def __post_init__(self):
    if self.backend not in ("auto", "bwrap", "docker"):
      raise ValueError(f"backend={self.backend!r} must be auto, bwrap or docker")
    if self.runtime not in ("auto", "runc", "runsc"):
      raise ValueError(f"runtime={self.runtime!r} must be auto, runc or runsc")
    for name in ("size", "runs_per_sandbox"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


class Pool:
  """Runs requests in sandboxes. Use as an async context manager; `run` may be called many at once.

  Raises NoBackendError on entry if no backend works here.
  """

  def __init__(self, config: PoolConfig):
    self.config = config
    self.backend: Backend
    # The last one back is the next one out: its memory is still in the caches.
    self._places: asyncio.LifoQueue[Sandbox | None] = asyncio.LifoQueue()
    self._running: set[asyncio.Task] = set()
    self._background: set[asyncio.Task] = set()
    self._serial = 0
    self._closing = False

  async def __aenter__(self) -> "Pool":
    await asyncio.to_thread(reap)
    self._journal = Journal.create()
    try:
      self.backend = await asyncio.to_thread(choose_backend, self.config, self._journal.add)
      self._audit = Audit(self.config.audit_path)
      self._places.put_nowait(await self._open(self.config.limits))  # fail now rather than later
    except BaseException:
      self._journal.close()
      raise
    for _ in range(self.config.size - 1):
      self._warm()
    return self

  async def __aexit__(self, *_) -> None:
    self._closing = True
    for task in self._running:
      task.cancel()
    while waiting := (*self._running, *self._background):
      await asyncio.gather(*waiting, return_exceptions=True)
    while not self._places.empty():
      sandbox = self._places.get_nowait()
      if sandbox:
        await sandbox.close()
    self._audit.close()
    self._journal.close()

  async def run(self, request: Request) -> Result:
    """Waits for a free sandbox and runs `request` in it.

    An infra failure is retried once on a fresh sandbox, then returned as an outcome for which
    `is_infra_failure` holds. Raises RequestError (a ValueError) for a request that no sandbox could
    run. If the calling task is cancelled, the program is killed at once.
    """
    try:
      check_request(request)
    except RequestError as e:
      self._audit.write(request, None, "", str(e))
      raise
    task = asyncio.ensure_future(self._run(request))
    self._running.add(task)
    task.add_done_callback(self._running.discard)
    try:
      return await task
    except asyncio.CancelledError:
      if not (self._closing and task.cancelled()):
        raise
    result = Result(Outcome.cancelled, backend=self.backend.name, detail="the pool was closed")
    self._audit.write(request, result, "")
    return result

  def idle(self) -> list[Sandbox]:
    """The sandboxes that wait for a request."""
    return [s for s in self._places._queue if s]

  async def _run(self, request: Request) -> Result:
    queued = time.monotonic()
    sandbox = await self._places.get()
    waited = time.monotonic() - queued
    try:
      for attempt in (1, 2):
        try:
          sandbox = await self._ready(sandbox, request)
          result = await sandbox.run(request, self.config.fork_python)
          break
        except (SandboxLost, OSError) as e:
          detail = str(e)
          log.warning("sandbox lost (attempt %d of 2): %s", attempt, detail)
          lost = Outcome.sandbox_lost if sandbox else Outcome.infra_error
          result = Result(lost, backend=self.backend.name, detail=detail)
          if sandbox:
            await sandbox.close()
            sandbox = None
    except BaseException:
      if sandbox:
        await sandbox.close()
        sandbox = None
      raise
    finally:
      name = sandbox.name if sandbox else ""
      if sandbox and not 0 <= sandbox.runs < self.config.runs_per_sandbox:
        await sandbox.close()
        sandbox = None
      if sandbox or self._closing:
        self._places.put_nowait(sandbox)
      else:
        self._warm()
    self._audit.write(request, result, name, waited_s=waited)
    return result

  async def _ready(self, sandbox: Sandbox | None, request: Request) -> Sandbox:
    """`sandbox` if it may serve this request, else a new one."""
    if sandbox:
      clean = sandbox.vessel.keeps_nothing or sandbox.tenant in (None, request.tenant)
      if clean and sandbox.vessel.fits(request.limits):
        return sandbox
      await sandbox.close()
    return await self._open(request.limits)

  async def _open(self, limits: Limits) -> Sandbox:
    """A start is never cancelled half-way: who no longer wants the sandbox has it closed later."""
    self._serial += 1
    name = f"{self._journal.runner}-{self._serial}"
    start = asyncio.ensure_future(Sandbox.open(name, self.backend, limits))
    try:
      return await asyncio.shield(start)
    except asyncio.CancelledError:
      self._in_background(self._discard(start))
      raise

  async def _discard(self, start: asyncio.Task) -> None:
    try:
      sandbox = await start
    except (SandboxLost, OSError):
      return  # it has cleaned up
    await sandbox.close()

  def _in_background(self, coroutine: Coroutine) -> None:
    task = asyncio.ensure_future(coroutine)
    self._background.add(task)
    task.add_done_callback(self._background.discard)

  def _warm(self) -> None:
    """Opens a sandbox in the background and adds it to the places."""
    self._in_background(self._add_place())

  async def _add_place(self) -> None:
    sandbox = None
    try:
      sandbox = await self._open(self.config.limits)
    except (SandboxLost, OSError) as e:
      log.warning("no warm sandbox: %s", e)  # the next request tries again, and reports it
    finally:
      self._places.put_nowait(sandbox)
