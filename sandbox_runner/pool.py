"""The pool: requests in, results out, each accounted for; infra failures retried once."""

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from sandbox_runner import posture
from sandbox_runner.audit import ROTATE_BYTES, Audit, AuditError
from sandbox_runner.backends.base import Backend
from sandbox_runner.detect import choose_backend
from sandbox_runner.journal import Journal, reap, remove_containers
from sandbox_runner.places import Places, Turn
from sandbox_runner.sandbox import Sandbox
from sandbox_runner.scheduler import QueueFullError, Scheduler, TenantPolicy
from sandbox_runner.session import Session, lease
from sandbox_runner.types import (
  Limits,
  NoBackendError,
  Outcome,
  PoolClosedError,
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
    image: one of `images` by its name (`images.limits_of` gives limits that suit it), for bwrap an
      unpacked root tree, for docker any image; "" for the host's own Python.
    runtime: of docker; "auto" takes runsc if the daemon has it, else runc.
    fork_python: run `python3 FILE` and `python3 -c CODE` by a fork of a warm interpreter.
    preload: modules that this interpreter holds ready.
    runs_per_sandbox: after so many requests a sandbox is replaced.
    limits: those for which docker's sandboxes are made in advance.
    queue_limit: requests that may wait; others wait until there is room, or are refused.
    tenants: shares and rates of the tenants (see `Request.tenant`) that have their own.
    default_tenant: of all others.
    ageing_s: what a level of priority is worth, in seconds.
    hedge_s: a sandbox that takes longer to start gets a competitor.
    audit_rotate_bytes: size at which a new audit file is begun.
    audit_text: whether programs, files and input are written there as text too.
    waived_checks: posture checks whose failure does not keep the pool from starting; see `posture`.
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
  queue_limit: int = 10_000
  tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
  default_tenant: TenantPolicy = field(default_factory=TenantPolicy)
  ageing_s: float = 10.0
  hedge_s: float = 5.0
  audit_rotate_bytes: int = ROTATE_BYTES
  audit_text: bool = False
  waived_checks: tuple[str, ...] = ()

  def __post_init__(self):
    if self.backend not in ("auto", "bwrap", "docker"):
      raise ValueError(f"backend={self.backend!r} must be auto, bwrap or docker")
    if self.runtime not in ("auto", "runc", "runsc"):
      raise ValueError(f"runtime={self.runtime!r} must be auto, runc or runsc")
    for name in ("size", "runs_per_sandbox", "queue_limit", "audit_rotate_bytes"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
    for name in ("ageing_s", "hedge_s"):
      if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
        raise ValueError(f"{name}={getattr(self, name)} must be a number of seconds above 0")
    posture.check_names(self.waived_checks)


class Pool:
  """Runs requests in sandboxes. Use as an async context manager; `run` may be called many at once.

  Raises NoBackendError on entry if no backend works here, PostureError if its sandboxes are open
  where they must not be, AuditError if the audit log cannot be written.
  """

  def __init__(self, config: PoolConfig):
    self.config = config
    self.backend: Backend
    self.posture: dict[str, str] = {}  # check -> what is wrong
    self._audit = Audit(None)  # until the pool is opened
    scheduler = Scheduler(
      config.tenants, config.default_tenant, config.queue_limit, config.ageing_s
    )
    self._places = Places(
      self._open, scheduler, config.limits, config.runs_per_sandbox, config.hedge_s
    )
    self._running: set[asyncio.Task] = set()
    self._sessions: set[Session] = set()
    self._serial = 0
    self._closing = False

  async def __aenter__(self) -> "Pool":
    config = self.config
    try:
      await asyncio.to_thread(reap)
      self._journal = Journal.create()
    except OSError as e:
      raise NoBackendError(f"the journal of what is to be removed cannot be written: {e}") from e
    try:
      self.backend = await asyncio.to_thread(choose_backend, config, self._journal.add)
      self._audit = Audit(config.audit_path, config.audit_rotate_bytes, config.audit_text)
      await self._places.start(config.size)
      await self._check_posture()
    except (SandboxLost, OSError) as e:
      await self._tear_down()
      raise NoBackendError(f"sandboxes do not start here: {e}") from e
    except BaseException:
      await self._tear_down()
      raise
    return self

  async def __aexit__(self, *_) -> None:
    await self._tear_down()

  async def _tear_down(self) -> None:
    self._closing = True
    self._places.refuse()
    await asyncio.gather(*(session.close() for session in tuple(self._sessions)))
    for task in self._running:
      task.cancel()
    while self._running:
      await asyncio.gather(*self._running, return_exceptions=True)
    await self._places.close()
    self._audit.close()
    in_doubt = self.backend.in_doubt if hasattr(self, "backend") else ()
    swept = await asyncio.to_thread(remove_containers, self.runner) if in_doubt else []
    self._journal.close(all_removed=swept is not None)

  async def _check_posture(self) -> None:
    """One probe for all sandboxes of the pool, for all are made alike. Raises PostureError."""
    request = posture.probe_request(self.config.limits)
    turn = self._places.queue(request)
    own_kernel = self.backend.name.endswith("runsc")
    python = getattr(self.backend, "python", "/usr/bin/python3")
    before = posture.this_host(own_kernel, python)
    try:
      result = await self._run(_Job(request, turn))
    finally:
      self._places.leave(turn)
    host = posture.this_host(own_kernel, python)
    # Numbers of mounts that come and go are given again, perhaps to those of a sandbox.
    host = replace(host, devices=host.devices & before.devices)
    self.posture = posture.judge_posture(result, host)
    failed = {name: detail for name, detail in self.posture.items() if detail}
    waived = {name: failed.pop(name, "") for name in self.config.waived_checks}
    self._audit.event("posture", backend=self.backend.name, failed=failed, waived=waived)
    for name, detail in waived.items():
      log.warning("posture check %s is waived: %s", name, detail or "it would hold")
    if failed:
      raise posture.PostureError(self.backend.name, failed)
    for sandbox in self.idle():
      sandbox.tenant = None  # the probe is our own program: nobody is to be kept from its traces

  async def run(
    self,
    request: Request,
    *,
    priority: int = 0,
    deadline_s: float | None = None,
    wait: bool = True,
  ) -> Result:
    """Waits for a free sandbox and runs `request` in it.

    An infra failure is retried once on another sandbox, then returned as an outcome for which
    `is_infra_failure` holds; how the program itself ends is never a reason to run it again. If the
    calling task is cancelled, the program is killed at once.

    Args:
      request: the program.
      priority: higher goes first; see `scheduler` for how much it is worth.
      deadline_s: seconds from now, waiting included, after which the result is `cancelled` whatever
        the state of the program, which is killed.
      wait: False raises QueueFullError, rather than waiting, if the queue is full.

    Raises RequestError (a ValueError) for a request that no sandbox could run, PoolClosedError
    (another) outside the pool's `async with`.
    """
    self._places.check_open()
    try:
      check_request(request)
    except RequestError as e:
      self._audit.write(request, None, "", str(e))
      raise
    if self._places.scheduler.full and not wait:
      raise QueueFullError(f"{self.config.queue_limit} requests wait already")
    job = _Job(request, self._places.queue(request, priority))
    task = asyncio.ensure_future(self._run(job))
    self._running.add(task)
    task.add_done_callback(self._running.discard)
    task.add_done_callback(lambda _: self._places.leave(job.turn))
    deadline = asyncio.timeout(deadline_s)
    try:
      async with deadline:
        result = await task
    except TimeoutError:
      result = self._cancelled(f"its deadline of {deadline_s:g} s passed")
    except PoolClosedError:  # while it was in the queue
      result = self._cancelled("the pool was closed")
    except asyncio.CancelledError:
      if not (self._closing and task.cancelled()):
        self._account(job, self._cancelled("the caller no longer wants it"))
        raise
      result = self._cancelled("the pool was closed")
    return self._account(job, result)

  def lease(
    self,
    *,
    tenant: str = "",
    limits: Limits | None = None,
    idle_s: float = 600.0,
    priority: int = 0,
  ) -> AbstractAsyncContextManager[Session]:
    """A session: one sandbox for many steps, whose files persist between them. See `session`.

      async with pool.lease(tenant="swe") as session:
        result = await session.exec(("python3", "-c", "open('x', 'w').write('1')"))
        assert await session.read_files("x") == {"x": b"1"}

    Waits for a place, and holds it until the session ends, or is not used for `idle_s` seconds.
    """
    return lease(
      self._places,
      self._sessions,
      self._write,
      limits=limits or self.config.limits,
      tenant=tenant,
      priority=priority,
      idle_s=idle_s,
      fork_python=self.config.fork_python,
    )

  async def settle(self) -> None:
    """Waits until no sandbox is being opened or closed: before its event loop is to stand still."""
    await self._places.settle()

  @property
  def runner(self) -> str:
    """By which sandboxes, containers and groups of this pool are named."""
    return self._journal.runner

  def idle(self) -> list[Sandbox]:
    """The sandboxes that wait for a request."""
    return [s for s in self._places.free if s]

  async def _run(self, job: "_Job") -> Result:
    loan = await job.turn.claim()
    job.waited_s = loan.waited_s
    try:
      for attempt in (1, 2):
        job.attempts = attempt
        try:
          sandbox = await self._places.fit(loan, job.request)
          job.sandbox = sandbox.name
          return await sandbox.run(job.request, self.config.fork_python)
        except (SandboxLost, OSError) as e:
          log.warning("sandbox lost (attempt %d of 2): %s", attempt, e)
          lost = Outcome.sandbox_lost if loan.sandbox else Outcome.infra_error
          result = Result(lost, backend=self.backend.name, detail=str(e))
          await self._places.empty(loan)
    except BaseException:
      await self._places.empty(loan)
      raise
    finally:
      self._places.give_back(loan)
    return result

  def _cancelled(self, why: str) -> Result:
    return Result(Outcome.cancelled, backend=self.backend.name, detail=why)

  def _account(self, job: "_Job", result: Result) -> Result:
    return self._write(job.request, result, job.sandbox, job.waited_s, job.attempts)

  def _write(
    self, request: Request, result: Result, sandbox: str, waited_s: float = 0.0, attempts: int = 1
  ) -> Result:
    """Writes the audit line. A result that cannot be accounted for is not given out."""
    try:
      self._audit.write(request, result, sandbox, waited_s=waited_s, attempts=attempts)
    except AuditError as e:
      log.error("%s", e)
      return Result(Outcome.infra_error, backend=self.backend.name, detail=str(e))
    return result

  async def _open(self, limits: Limits) -> Sandbox:
    self._serial += 1
    return await Sandbox.open(f"{self._journal.runner}-{self._serial}", self.backend, limits)


@dataclass(eq=False)
class _Job:
  """What is known of a request on its way, for the audit log."""

  request: Request
  turn: Turn
  sandbox: str = ""
  waited_s: float = 0.0
  attempts: int = 0
