"""The places of a pool: each holds a warm sandbox, is empty, or is lent to one request."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from sandbox_runner.sandbox import Sandbox
from sandbox_runner.scheduler import Entry, Scheduler
from sandbox_runner.types import Limits, PoolClosedError, Request, SandboxLost

log = logging.getLogger("sandbox_runner")
END_S = 1.0  # how long a caller waits for the end of its sandbox, which goes on without it


@dataclass(eq=False)
class Loan:
  """A place that is lent. `sandbox` is None while the place is empty."""

  entry: Entry
  sandbox: Sandbox | None
  waited_s: float
  began: float


@dataclass(eq=False)
class Turn:
  """A request in the queue. `future` gives the loan to who claims it."""

  entry: Entry
  request: Request
  future: asyncio.Future[Loan]
  claimed: bool = False

  @property
  def lent(self) -> bool:
    """Whether the future has a loan: it is neither open, nor given up, nor refused."""
    done = self.future.done() and not self.future.cancelled()
    return done and self.future.exception() is None

  async def claim(self) -> Loan:
    loan = await self.future
    self.claimed = True
    return loan


def suits(sandbox: Sandbox, request: Request) -> bool:
  """True if this sandbox may serve this request and can enforce its limits."""
  clean = sandbox.vessel.keeps_nothing or sandbox.tenant in (None, request.tenant)
  return clean and sandbox.vessel.fits(request.limits)


class Places:
  """Lends places in the order of `scheduler`, and keeps them warm.

  Args:
    open_sandbox: opens a sandbox for these limits, or raises SandboxLost or OSError.
    limits: those for which sandboxes are opened in advance.
    runs_per_sandbox: after so many runs a sandbox is replaced.
    hedge_s: a start that takes longer gets a second one beside it, and the first to be ready is
      taken. Only starts: a program is never run twice at the same time.
  """

  def __init__(
    self,
    open_sandbox: Callable[[Limits], Coroutine[None, None, Sandbox]],
    scheduler: Scheduler,
    limits: Limits,
    runs_per_sandbox: int,
    hedge_s: float,
  ):
    self._open_sandbox, self.scheduler = open_sandbox, scheduler
    self.limits, self.runs_per_sandbox, self.hedge_s = limits, runs_per_sandbox, hedge_s
    # The first one back is the next one out: it has had the time to make ready for its next task.
    self.free: list[Sandbox | None] = []
    self._background: set[asyncio.Task] = set()
    self._turns: set[Turn] = set()  # those that wait
    self._loans: set[Loan] = set()
    self._all_back = asyncio.Event()
    self._timer: asyncio.TimerHandle | None = None
    self.closing = True  # before the start and after the end no place is lent

  async def start(self, size: int) -> None:
    """Raises SandboxLost or OSError if the first sandbox does not open."""
    self.closing = False
    self.free.append(await self.open(self.limits))
    for _ in range(size - 1):
      self._warm()

  def check_open(self) -> None:
    """Raises PoolClosedError."""
    if self.closing:
      raise _closed()

  def refuse(self) -> None:
    """From now on: whoever waits for a place, or will ask for one, gets PoolClosedError."""
    self.closing = True
    for turn in self._turns:
      if not turn.future.done():
        turn.future.set_exception(_closed())
        turn.future.exception()  # the waiter may have gone away: nobody has to look at it

  async def close(self) -> None:
    """Waits until all that is lent is back, and ends all."""
    self.refuse()
    while self._loans:
      self._all_back.clear()
      await self._all_back.wait()
    if self._timer:
      self._timer.cancel()
    await self.settle()
    await asyncio.gather(*(s.close() for s in self.free if s))
    self.free.clear()

  async def settle(self) -> None:
    """Waits for all that goes on in the background."""
    while self._background:
      await asyncio.gather(*self._background, return_exceptions=True)

  def queue(self, request: Request, priority: int = 0) -> Turn:
    """Joins the queue. Whoever calls this calls `leave` in the end, whatever happens.

    Raises PoolClosedError.
    """
    self.check_open()
    future = asyncio.get_running_loop().create_future()
    entry = Entry(request.tenant, priority, time.monotonic())
    turn = entry.payload = Turn(entry, request, future)
    self._turns.add(turn)
    self.scheduler.submit(entry)
    self._dispatch()
    return turn

  def leave(self, turn: Turn) -> None:
    """Gives up a turn that has not come, or a loan that nobody has claimed."""
    self._turns.discard(turn)
    if turn.lent:
      if not turn.claimed:
        turn.claimed = True
        self.give_back(turn.future.result())
      return
    turn.future.cancel()
    self.scheduler.cancel(turn.entry)
    self._dispatch()

  async def fit(self, loan: Loan, request: Request) -> Sandbox:
    """Puts a sandbox that suits into the lent place: its own, a warm one, or else a new one.

    Raises SandboxLost or OSError if none can be opened.
    """
    if loan.sandbox and suits(loan.sandbox, request):
      return loan.sandbox
    await self.empty(loan)
    loan.sandbox = self._pick(request)
    if loan.sandbox:
      self._warm()  # for the place that this one was taken from
    else:
      loan.sandbox = await self.open(request.limits)
    return loan.sandbox

  async def empty(self, loan: Loan) -> None:
    """Ends the sandbox of a lent place. Its programs are dead when this returns."""
    if loan.sandbox:
      end = self.in_background(loan.sandbox.close())
      loan.sandbox = None
      await asyncio.wait((end,), timeout=END_S)

  def give_back(self, loan: Loan) -> None:
    """A worn sandbox, or one that has broken the protocol, is replaced."""
    self.scheduler.finish(loan.entry, time.monotonic() - loan.began)
    self._loans.discard(loan)
    self._all_back.set()
    sandbox = loan.sandbox
    if sandbox and not 0 <= sandbox.runs < self.runs_per_sandbox:
      self.in_background(sandbox.close())
      sandbox = None
    if sandbox or self.closing:
      self.free.append(sandbox)
      self._dispatch()
    else:
      self._warm()

  async def open(self, limits: Limits) -> Sandbox:
    """A start is never cancelled half-way: who no longer wants the sandbox has it closed later."""
    starts = [asyncio.ensure_future(self._open_sandbox(limits))]
    winner = None
    try:
      await asyncio.wait(starts, timeout=self.hedge_s)
      if not starts[0].done():
        log.warning("a sandbox takes over %g s to start: another is started", self.hedge_s)
        starts.append(asyncio.ensure_future(self._open_sandbox(limits)))
      winner = await _first_to_succeed(starts)
      return winner.result()
    finally:
      for start in starts:
        if start is not winner:
          self.in_background(_close_when_open(start))

  def in_background(self, coroutine: Coroutine) -> asyncio.Task:
    task = asyncio.ensure_future(coroutine)
    self._background.add(task)
    task.add_done_callback(self._background.discard)
    return task

  def _warm(self) -> None:
    """Opens a sandbox in the background and adds it to the free places."""
    self.in_background(self._add_place())

  async def _add_place(self) -> None:
    sandbox = None
    try:
      sandbox = await self.open(self.limits)
    except (SandboxLost, OSError) as e:
      log.warning("no warm sandbox: %s", e)  # the next request tries again, and reports it
    finally:
      self.free.append(sandbox)
      self._dispatch()

  def _dispatch(self) -> None:
    """Lends free places for as long as somebody may have one."""
    now = time.monotonic()
    while self.free and not self.closing and (entry := self.scheduler.take(now)):
      turn: Turn = entry.payload
      if turn.future.done():  # cancelled, and its waiter has not run since
        self.scheduler.finish(entry, 0.0)
        continue
      sandbox = self._pick(turn.request) or self._pick_any()
      loan = Loan(entry, sandbox, now - entry.submitted, now)
      self._loans.add(loan)
      turn.future.set_result(loan)
    if self._timer:
      self._timer.cancel()
      self._timer = None
    ready_at = self.scheduler.ready_at(now) if self.free and not self.closing else math.inf
    if math.isfinite(ready_at):
      loop = asyncio.get_running_loop()
      self._timer = loop.call_later(ready_at - now, self._dispatch)

  def _pick(self, request: Request) -> Sandbox | None:
    """Takes a free sandbox that suits out of its place."""
    for i, sandbox in enumerate(self.free):
      if sandbox and suits(sandbox, request):
        return self.free.pop(i)
    return None

  def _pick_any(self) -> Sandbox | None:
    """Takes an empty place, or else a sandbox that its next request will have to end."""
    for i, sandbox in enumerate(self.free):
      if sandbox is None:
        return self.free.pop(i)
    return self.free.pop()


def _closed() -> PoolClosedError:
  return PoolClosedError("the pool is closed; use it within its `async with`")


async def _first_to_succeed(starts: list[asyncio.Task]) -> asyncio.Task:
  """The first start that gives a sandbox; if none does, the last one to fail."""
  left, start = set(starts), starts[0]
  while left:
    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    for start in done:
      if start.exception() is None:
        return start
  return start


async def _close_when_open(start: asyncio.Task) -> None:
  try:
    sandbox = await start
  except (SandboxLost, OSError):
    return  # it has cleaned up
  await sandbox.close()
