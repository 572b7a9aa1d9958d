"""A session: one sandbox for many steps, whose work directory persists between them.

  async with pool.lease(tenant="swe", idle_s=300) as session:
    await session.write_files({"src/main.py": source})
    before = await session.snapshot()
    result = await session.exec(("python3", "main.py"), cwd="src", copy_out=("out/*.json",))
    files = await session.read_files("src/**/*.py")
    await session.restore(before)

What persists is what is in the writable directories. Processes do not: each `exec` starts with none
and ends all of its own. The exception is `shell`, see there.

The session has its sandbox to itself from the first step to the last; it is then thrown away. One
step at a time: a second one waits. A step that is cancelled, or runs into `asyncio.timeout`, is
ended, and the session goes on. A session that nobody uses for `idle_s` seconds is closed, and
whoever uses it later gets SessionExpired.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import replace

from sandbox_runner.places import Places
from sandbox_runner.protocol import Mode
from sandbox_runner.sandbox import GRACE_S, Sandbox
from sandbox_runner.shell import Shell
from sandbox_runner.types import (
  Limits,
  Outcome,
  Request,
  RequestError,
  Result,
  SandboxLost,
  Snapshot,
  check_files,
  check_path,
  check_request,
)

KEEP = Mode(keep=True)


class SessionError(Exception):
  """A session that cannot do what was asked of it."""


class SessionClosed(SessionError):
  """It was closed by its user, or with its pool."""


class SessionExpired(SessionError):
  """Nobody used it for too long."""


class SessionLost(SessionError):
  """Its sandbox went away, and its files with it."""


Account = Callable[[Request, Result, str], Result]


class Session:
  """A lease on one sandbox; made by `Pool.lease`. `end` gives the sandbox up."""

  def __init__(
    self,
    sandbox: Sandbox,
    *,
    limits: Limits,
    tenant: str,
    idle_s: float,
    fork_python: bool,
    account: Account,
    end: Callable[[], Coroutine[None, None, None]],
  ):
    self.sandbox, self.limits, self.tenant = sandbox, limits, tenant
    self._idle_s, self._fork_python = idle_s, fork_python
    self._account, self._end = account, end
    self._step = asyncio.Lock()
    self._ended: SessionError | None = None
    self._ending: asyncio.Task[None] | None = None
    self._rest()

  async def exec(
    self,
    argv: tuple[str, ...],
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str = "",
    limits: Limits | None = None,
    copy_out: tuple[str, ...] = (),
  ) -> Result:
    """Runs one program to its end; see `Request` for the arguments. Nothing is ever run twice.

    `limits` are those of the session unless given; docker's memory, processes and disk are fixed
    for a session. Raises RequestError for what cannot be run. If the sandbox is lost, the result
    says so, and the next step raises SessionLost.
    """
    request = Request(
      argv if isinstance(argv, str) else tuple(argv),  # a text is refused below
      files or {},
      stdin,
      env or {},
      limits or self.limits,
      self.tenant,
      copy_out,
      cwd,
    )
    check_request(request)
    return await self.run(request, KEEP)

  async def write_files(self, files: Mapping[str, bytes]) -> None:
    """Writes files below the work directory, as the program's own user.

    Raises SessionError if the sandbox does not take them: no room, or a directory in their place.
    """
    check_files(files)
    await self._put(Request((), files, limits=self.limits, tenant=self.tenant), KEEP)

  async def read_files(self, *patterns: str, limits: Limits | None = None) -> dict[str, bytes]:
    """Path -> content of the regular files that match; see `Request.copy_out`.

    What a shell has left in the background may write meanwhile; it cannot lead the reading astray.
    Raises SessionError if a file that matches is over a bound of `limits`.
    """
    for pattern in patterns:
      check_path(pattern)
    back = await self._read(patterns, limits or self.limits, tree=False)
    bounded = [n for n, why in back.left_out.items() if why.startswith("too ")]
    if bounded or back.cut:
      raise SessionError(back.cut or f"{bounded[0]!r} is {back.left_out[bounded[0]]}")
    return back.files

  async def snapshot(self) -> Snapshot:
    """The work directory as it is: files, directories and links, with modes and times.

    Pipes and sockets are not part of it. Raises SessionError if it is over `copy_out_entries` or
    deeper than what is read back; its bytes are bounded by `disk_mb`.
    """
    limits = replace(self.limits, copy_out_bytes=min(self.limits.disk_mb << 20, 1 << 30))
    back = await self._read(("**",), limits, tree=True)
    missing = {n: w for n, w in back.left_out.items() if w != "not a regular file"}
    if missing:
      name, why = next(iter(missing.items()))
      raise SessionError(f"no snapshot: {name!r} {why}")
    return Snapshot(back.entries)

  async def restore(self, snapshot: Snapshot) -> None:
    """Makes the work directory what it was. Raises SessionError if the sandbox has no room."""
    request = Request((), limits=self.limits, tenant=self.tenant)
    await self._put(request, Mode(keep=True, snapshot=snapshot))

  def shell(self, rows: int = 24, columns: int = 80) -> Shell:
    """A shell with a memory, on a terminal of this size; see `shell`."""
    return Shell(self, rows, columns)

  async def close(self) -> None:
    """Ends all that runs, and gives the place back to the pool. May be called twice."""
    await asyncio.shield(self._finish(SessionClosed("the session is closed")))

  async def run(self, request: Request, mode: Mode) -> Result:
    """One step of this session, accounted for like any other run."""
    async with self._stepping():
      if not self.sandbox.vessel.fits(request.limits):
        raise RequestError("memory, processes and disk are fixed here; use the session's own")
      try:
        result, cancelled = await self._run_or_end(request, mode)
      except (SandboxLost, OSError) as e:
        result = Result(Outcome.sandbox_lost, backend=self.sandbox.backend, detail=str(e))
        cancelled = False
      except BaseException:
        self._finish(SessionLost("a step was cancelled half-way"))
        raise
      result = self._account(request, result, self.sandbox.name)
      if result.outcome == Outcome.sandbox_lost or self.sandbox.runs < 0:
        self._finish(SessionLost(result.detail))
      if cancelled:
        raise asyncio.CancelledError
      return result

  async def _run_or_end(self, request: Request, mode: Mode) -> tuple[Result, bool]:
    """If the caller is cancelled, ends the program: then (its result, True)."""
    step = asyncio.ensure_future(self.sandbox.run(request, self._fork_python, mode))
    try:
      return await asyncio.shield(step), False
    except asyncio.CancelledError:
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S + request.limits.copy_out_s):
          while not step.done():
            self.sandbox.tell({"end": True})  # not heard while the request is still on its way
            await asyncio.wait((step,), timeout=0.05)
      step.cancel()
      return await step, True
    finally:
      step.cancel()

  async def _put(self, request: Request, mode: Mode) -> None:
    result = await self.run(request, mode)
    if result.outcome == Outcome.sandbox_lost:
      raise SessionLost(result.detail)
    if (result.outcome, result.exit_code) != (Outcome.exit, 0):
      raise SessionError(f"the files were not all written: {result.detail or result.outcome}")

  async def _read(self, patterns: tuple[str, ...], limits: Limits, tree: bool):
    async with self._stepping():
      try:
        return await self.sandbox.read_back(patterns, limits, tree)
      except SandboxLost as e:
        self._finish(SessionLost(str(e)))
        raise SessionLost(str(e)) from e
      except BaseException:
        self._finish(SessionLost("a step was cancelled half-way"))
        raise

  @contextlib.asynccontextmanager
  async def _stepping(self) -> AsyncGenerator[None]:
    async with self._step:
      if self._ended:
        raise self._ended
      self._idle.cancel()
      try:
        yield
      finally:
        if not self._ended:
          self._rest()

  def _rest(self) -> None:
    self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._expire)

  def _expire(self) -> None:
    if not self._step.locked():
      self._finish(SessionExpired(f"the session was not used for {self._idle_s:g} s"))

  def _finish(self, error: SessionError) -> asyncio.Task[None]:
    """Ends the session for a reason, unless it has ended for another."""
    if self._ended is None:
      self._ended = error
    self._idle.cancel()
    if self._ending is None:
      self._ending = asyncio.ensure_future(self._end())
    return self._ending


@contextlib.asynccontextmanager
async def lease(
  places: Places,
  open_sessions: set[Session],
  account: Account,
  *,
  limits: Limits,
  tenant: str,
  priority: int,
  idle_s: float,
  fork_python: bool,
) -> AsyncGenerator[Session]:
  """Waits for a place like a run does, and holds it; see `Pool.lease`."""
  if not idle_s > 0:
    raise ValueError(f"idle_s={idle_s!r} must be above 0 seconds; inf for a session without end")
  request = Request((), limits=limits, tenant=tenant)
  turn = places.queue(request, priority)
  try:
    loan = await turn.claim()
  finally:
    places.leave(turn)

  async def give_up() -> None:
    try:
      await places.empty(loan)
    finally:
      places.give_back(loan)

  try:
    sandbox = await places.fit(loan, request)
    places.check_open()  # opening one takes its time
  except (SandboxLost, OSError) as e:
    await give_up()
    raise SessionLost(f"no sandbox could be opened: {e}") from e
  except BaseException:
    await give_up()
    raise
  session = Session(
    sandbox,
    limits=limits,
    tenant=tenant,
    idle_s=idle_s,
    fork_python=fork_python,
    account=account,
    end=give_up,
  )
  open_sessions.add(session)
  try:
    yield session
  finally:
    await session.close()
    open_sessions.discard(session)
