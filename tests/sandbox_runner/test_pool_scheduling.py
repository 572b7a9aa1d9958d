"""The pool's queue with real sandboxes: deadlines, back-pressure, fairness, retries, accounts."""

import asyncio
import json
import shutil
import statistics
from pathlib import Path

import pytest
from sandbox_driver import Driver
from sandbox_host import arguments_of_all

from sandbox_runner import (
  Limits,
  Outcome,
  Pool,
  PoolConfig,
  QueueFullError,
  Request,
  Result,
  TenantPolicy,
)

SLEEP = Request(("sleep", "4321"))
TRUE = Request(("true",))


def sleepers() -> list[int]:
  return [pid for pid, argv in arguments_of_all().items() if argv[:2] == [b"sleep", b"4321"]]


async def until(condition) -> None:
  async with asyncio.timeout(20):
    while not condition():
      await asyncio.sleep(0.02)


def entries(path: Path) -> list[dict]:
  lines = map(json.loads, path.read_text().splitlines())
  return [e for e in lines if e["event"] == "run"]


def test_deadline_ends_a_running_program(driver: Driver):
  async def go() -> tuple[Result, Result]:
    call = asyncio.create_task(driver.pool.run(SLEEP, deadline_s=1.0))
    await until(sleepers) if driver.pool.backend.name != "docker+runsc" else None
    result = await call
    await until(lambda: not sleepers())
    return result, await driver.pool.run(Request(("echo", "next")))

  result, following = driver.run(go())
  assert (result.outcome, result.detail) == (Outcome.cancelled, "its deadline of 1 s passed")
  assert result.is_infra_failure
  assert following.stdout == b"next\n"


def test_deadline_counts_the_time_in_the_queue(tmp_path: Path):
  path = tmp_path / "audit.jsonl"

  async def go():
    async with Pool(PoolConfig("bwrap", 1, audit_path=str(path))) as pool:
      busy = asyncio.create_task(pool.run(SLEEP))
      await until(sleepers)
      late = await pool.run(TRUE, deadline_s=0.3)
      busy.cancel()
      await asyncio.gather(busy, return_exceptions=True)
      return late, await pool.run(TRUE, deadline_s=20)

  late, soon = asyncio.run(go())
  assert (late.outcome, soon.outcome) == (Outcome.cancelled, Outcome.exit)
  details = [(e["outcome"], e["sandbox"] != "", e["detail"]) for e in entries(path)]
  assert details == [
    ("cancelled", False, "its deadline of 0.3 s passed"),
    ("cancelled", True, "the caller no longer wants it"),
    ("exit", True, ""),
  ]


def test_full_queue_waits_or_refuses():
  async def go():
    async with Pool(PoolConfig("bwrap", 1, queue_limit=2)) as pool:
      busy = asyncio.create_task(pool.run(SLEEP))
      await until(sleepers)
      waiting = [asyncio.create_task(pool.run(TRUE)) for _ in range(5)]
      await asyncio.sleep(0)
      with pytest.raises(QueueFullError, match="2 requests wait already"):
        await pool.run(TRUE, wait=False)
      busy.cancel()
      results = await asyncio.gather(*waiting)
      return [*results, await pool.run(TRUE, wait=False)]

  assert [r.outcome for r in asyncio.run(go())] == [Outcome.exit] * 6


def test_cancelled_while_waiting_gives_its_turn_up():
  async def go():
    async with Pool(PoolConfig("bwrap", 1, queue_limit=1)) as pool:
      busy = asyncio.create_task(pool.run(SLEEP))
      await until(sleepers)
      waiting = [asyncio.create_task(pool.run(TRUE)) for _ in range(4)]
      await asyncio.sleep(0)
      for task in (busy, *waiting[:3]):
        task.cancel()
      last = await waiting[3]
      assert len(pool.idle()) == 1
      return last, await asyncio.gather(busy, *waiting[:3], return_exceptions=True)

  last, cancelled = asyncio.run(go())
  assert last.outcome == Outcome.exit
  assert all(isinstance(c, asyncio.CancelledError) for c in cancelled)


def test_cancelled_while_waiting_makes_room_in_the_queue():
  async def go():
    async with Pool(PoolConfig("bwrap", 1, queue_limit=1)) as pool:
      busy = asyncio.create_task(pool.run(SLEEP))
      await until(sleepers)
      waiting = asyncio.create_task(pool.run(TRUE))
      await asyncio.sleep(0)
      waiting.cancel()
      await asyncio.gather(waiting, return_exceptions=True)
      following = asyncio.create_task(pool.run(TRUE, wait=False))
      await asyncio.sleep(0)
      busy.cancel()
      return await following

  assert asyncio.run(go()).outcome == Outcome.exit


@pytest.mark.parametrize("steps", range(6))
def test_cancelled_on_the_way_to_a_free_sandbox_loses_no_place(steps: int):
  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      call = asyncio.create_task(pool.run(TRUE))
      for _ in range(steps):
        await asyncio.sleep(0)
      call.cancel()
      await asyncio.gather(call, return_exceptions=True)
      return await pool.run(TRUE, deadline_s=20)

  assert asyncio.run(go()).outcome == Outcome.exit


def test_flood_of_one_tenant_does_not_delay_the_others(tmp_path: Path):
  """All are queued at once, the flood first. What is judged is the order, not the wall time."""
  path = tmp_path / "audit.jsonl"
  tenants = ["flood"] * 62 + [f"t{i % 29}" for i in range(58)]

  async def go():
    async with Pool(PoolConfig("bwrap", 2, audit_path=str(path))) as pool:
      requests = [
        Request(("python3", "-c", f"print({i})"), tenant=t) for i, t in enumerate(tenants)
      ]
      return await asyncio.gather(*map(pool.run, requests))

  results = asyncio.run(go())
  assert [r.stdout for r in results] == [b"%d\n" % i for i in range(120)]
  turns: dict[str, list[int]] = {}
  for turn, entry in enumerate(entries(path)):
    turns.setdefault(entry["tenant"], []).append(turn)
  waits = {tenant: statistics.mean(mine) for tenant, mine in turns.items()}
  others = [wait for tenant, wait in waits.items() if tenant != "flood"]
  assert len(others) == 29
  assert max(others) <= 3 * statistics.median(waits.values())
  assert max(others) < 62  # first come, first served would have all of them above this


def test_rate_of_a_tenant_leaves_the_others_alone():
  """Under its rate one run of the slow tenant begins at once, and the next in an hour."""
  slow = TenantPolicy(rate=1 / 3600)

  async def go():
    async with Pool(PoolConfig("bwrap", 2, tenants={"slow": slow})) as pool:
      runs = [
        asyncio.create_task(pool.run(Request(("true",), tenant="slow"), deadline_s=s))
        for s in (20, 1)
      ]
      others = await asyncio.gather(*(pool.run(TRUE) for _ in range(20)))
      return [r.outcome for r in others], [(await r).outcome for r in runs]

  assert asyncio.run(go()) == ([Outcome.exit] * 20, [Outcome.exit, Outcome.cancelled])


def test_tokens_that_come_wake_the_queue():
  async def go():
    config = PoolConfig("bwrap", 2, default_tenant=TenantPolicy(rate=20))
    async with Pool(config) as pool:
      return await asyncio.gather(*(pool.run(TRUE, deadline_s=20) for _ in range(5)))

  assert {r.outcome for r in asyncio.run(go())} == {Outcome.exit}


def test_a_program_is_never_run_again_for_how_it_ends(tmp_path: Path):
  path = tmp_path / "audit.jsonl"
  programs = {
    "exit": "raise SystemExit(9)",
    "signal": "import os; os.abort()",
    "timeout": "while True: pass",
    "output_limit": "print('x' * 5000)",
    "oom": "bytearray(300 << 20)",
    "infra_error": "its file has no room",
  }

  async def go():
    async with Pool(PoolConfig("bwrap", 1, audit_path=str(path))) as pool:
      results = []
      for name, program in programs.items():
        wall_s = 0.5 if name == "timeout" else 60.0
        limits = Limits(wall_s=wall_s, output_bytes=1000, memory_mb=64, disk_mb=1)
        files = {"f": bytes(2 << 20)} if name == "infra_error" else {}
        results.append(await pool.run(Request(("python3", "-c", program), files, limits=limits)))
      return results

  outcomes = [str(r.outcome) for r in asyncio.run(go())]
  memory_is_grouped = outcomes[4] == "oom"
  assert outcomes == [o if o != "oom" or memory_is_grouped else "exit" for o in programs]
  assert [e["attempts"] for e in entries(path)] == [1] * len(programs)


HANGING_BWRAP = """#!/bin/sh
if mv "{hang}" "{hang}.now" 2>/dev/null; then
  while [ -e "{hang}.now" ]; do sleep 0.1; done
  exit 1
fi
exec {bwrap} "$@"
"""


def test_settled_pool_has_a_sandbox_in_every_place():
  async def go():
    async with Pool(PoolConfig("bwrap", 8)) as pool:
      await pool.settle()
      return len(pool.idle())

  assert asyncio.run(go()) == 8


def test_slow_start_gets_a_competitor(open_directory: Path, monkeypatch):
  """The bwrap that the pool finds hangs once: the next one beside it serves the request."""
  hang, hangs = open_directory / "hang", open_directory / "hang.now"
  script = HANGING_BWRAP.format(hang=hang, bwrap=shutil.which("bwrap"))
  (open_directory / "bwrap").write_text(script)
  (open_directory / "bwrap").chmod(0o755)
  monkeypatch.setenv("PATH", str(open_directory), prepend=":")
  monkeypatch.setattr("sandbox_runner.backends.bwrap.BOOTSTRAP_LIMIT_S", 600.0)

  async def go():
    async with Pool(PoolConfig("bwrap", 1, hedge_s=0.2, runs_per_sandbox=2)) as pool:
      hang.touch()
      first = await pool.run(TRUE)  # with the probe the second: it wears the sandbox out
      await until(hangs.exists)
      slow = await pool.run(Request(("echo", "served")), deadline_s=60)
      assert hangs.exists()
      hangs.unlink()
      return first, slow

  first, slow = asyncio.run(go())
  assert first.outcome == Outcome.exit
  assert (slow.outcome, slow.stdout) == (Outcome.exit, b"served\n")


def test_result_that_cannot_be_accounted_for_is_not_given_out(tmp_path: Path):
  directory = tmp_path / "audit"
  directory.mkdir()
  path = directory / "audit.jsonl"

  async def go():
    async with Pool(PoolConfig("bwrap", 1, audit_path=str(path))) as pool:
      shutil.rmtree(directory)
      lost = await pool.run(Request(("echo", "SECRET")))
      directory.mkdir()
      return lost, await pool.run(TRUE)

  lost, healed = asyncio.run(go())
  assert (lost.outcome, lost.stdout) == (Outcome.infra_error, b"")
  assert "audit log" in lost.detail
  assert healed.outcome == Outcome.exit
  assert len(entries(path)) == 1
