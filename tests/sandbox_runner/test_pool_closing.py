"""What becomes of those that wait for, hold, or ask for a place while the pool closes."""

import asyncio
import fcntl

import pytest
from sandbox_faults import named, until

from sandbox_runner import Outcome, Pool, PoolClosedError, PoolConfig, Request
from sandbox_runner import journal as journal_module
from sandbox_runner.journal import Journal, reap
from sandbox_runner.sandbox import Sandbox

TRUE = Request(("true",))
IN_TIME_S = 60  # of a test that would otherwise wait for ever


def in_time(coroutine):
  async def go():
    async with asyncio.timeout(IN_TIME_S):
      return await coroutine

  return asyncio.run(go())


def test_closed_pool_refuses():
  pool = Pool(PoolConfig("bwrap", 1))

  async def refused():
    with pytest.raises(PoolClosedError, match="use it within its `async with`"):
      await pool.run(TRUE)
    with pytest.raises(PoolClosedError):
      async with pool.lease():
        pass

  async def go():
    await refused()
    async with pool:
      assert (await pool.run(TRUE)).outcome == Outcome.exit
    await refused()

  in_time(go())


def test_who_waits_for_a_place_is_told():
  async def hold(pool: Pool):
    async with pool.lease():
      await asyncio.sleep(IN_TIME_S)

  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      held = asyncio.create_task(hold(pool))
      await until(lambda: not pool.idle())
      waiting = [asyncio.create_task(hold(pool)), asyncio.create_task(pool.run(TRUE))]
      await asyncio.sleep(0)
    lease, run = await asyncio.gather(*waiting, return_exceptions=True)
    held.cancel()
    return lease, run, pool.runner

  lease, run, runner = in_time(go())
  assert isinstance(lease, PoolClosedError)
  assert (run.outcome, run.detail) == (Outcome.cancelled, "the pool was closed")
  assert named(runner) == {}


def test_lease_that_is_still_opening_its_sandbox(monkeypatch):
  """The pool waits for the sandbox, which is ended, and not left behind."""
  opening, go_on = asyncio.Event(), asyncio.Event()
  open_sandbox = Sandbox.open.__func__

  async def slowly(cls, *arguments):
    opening.set()
    await go_on.wait()
    return await open_sandbox(cls, *arguments)

  async def lease(pool: Pool):
    async with pool.lease():
      raise AssertionError("a lease on a closed pool")

  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      await pool.idle()[0].close()
      pool._places.free[:] = [None]
      monkeypatch.setattr(Sandbox, "open", classmethod(slowly))
      late = asyncio.create_task(lease(pool))
      await opening.wait()
      asyncio.get_running_loop().call_later(0.2, go_on.set)
    assert named(pool.runner) == {}
    return await asyncio.gather(late, return_exceptions=True), pool.runner

  (error,), runner = in_time(go())
  assert isinstance(error, PoolClosedError)
  assert named(runner) == {}


def test_cancellation_as_a_run_ends_is_not_lost(monkeypatch):
  """It comes between the run's own end, by the clock, and the end of the exchange."""
  lost = Sandbox._lost

  def cancelled_meanwhile(self, *arguments):
    asyncio.current_task().cancel()
    return lost(self, *arguments)

  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      monkeypatch.setattr("sandbox_runner.sandbox.GRACE_S", -9.5)
      monkeypatch.setattr(Sandbox, "_lost", cancelled_meanwhile)
      with pytest.raises(asyncio.CancelledError):
        await pool.run(Request(("sleep", "4332")))
      monkeypatch.undo()
      return await pool.run(TRUE)

  assert in_time(go()).outcome == Outcome.exit


def test_reaper_that_comes_before_the_lock(monkeypatch):
  """Another runner starts between the making of a journal and its lock, and removes the file."""
  flock, reaped = fcntl.flock, []

  def reap_first(fd, operation):
    if not reaped:
      reaped.append(True)
      reap()
    flock(fd, operation)

  monkeypatch.setattr(journal_module.fcntl, "flock", reap_first)
  journal = Journal.create()
  assert reaped
  assert journal.path.exists()
  journal.close(all_removed=True)
