"""Sessions: what persists, what does not, and the ends of a session."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, Pool, PoolConfig, Request, RequestError
from sandbox_runner.session import (
  Session,
  SessionClosed,
  SessionError,
  SessionExpired,
  SessionLost,
)

LEAVE_PROCESSES = "sleep 300 & (setsid sleep 300 &) ; echo >/dev/shm/s; echo kept >kept"
COUNT_PROCESSES = "p=(/proc/[0-9]*); echo ${#p[@]}"


def in_session(driver: Driver, steps, **lease) -> Session:
  """Runs `steps(session)`, an async function, in a session."""

  async def go():
    async with driver.pool.lease(**lease) as session:
      await steps(session)
    return session

  return driver.run(go())


async def bash(session: Session, script: str, **fields) -> bytes:
  result = await session.exec(("bash", "-c", script), **fields)
  assert (result.outcome, result.exit_code) == (Outcome.exit, 0), result
  return result.stdout


def test_files_persist_and_processes_do_not(driver: Driver):
  async def steps(session: Session):
    await bash(session, LEAVE_PROCESSES)
    script = f"{COUNT_PROCESSES}; cat kept; echo /dev/shm/*; pwd; cat"
    told = await bash(session, script, cwd="new/dir", stdin=b"in", files={"new/dir/kept": b"x\n"})
    assert told == b"2\nx\n/dev/shm/s\n/work/new/dir\nin"
    told = await bash(session, "echo $V; cat ../kept ../new/dir/kept", env={"V": "1"}, cwd="other")
    assert told == b"1\nkept\nx\n"

  in_session(driver, steps)


@pytest.mark.parametrize("end", ["exit 3", "sleep 300", "yes", "kill -9 $$"])
def test_files_persist_however_a_step_ends(driver: Driver, end: str):
  async def steps(session: Session):
    limits = Limits(wall_s=1, output_bytes=100)
    await session.exec(("bash", "-c", f"{LEAVE_PROCESSES}; {end}"), limits=limits)
    assert await bash(session, f"cat kept; {COUNT_PROCESSES}") == b"kept\n2\n"

  in_session(driver, steps)


def test_a_python_step_sees_them_too(driver: Driver):
  async def steps(session: Session):
    await session.write_files({"m.py": b"X = 5\n"})
    result = await session.exec(("python3", "-c", "import m; print(m.X)"))
    assert result.stdout == b"5\n", result

  in_session(driver, steps)


def test_files_in_and_out(driver: Driver):
  async def steps(session: Session):
    content = bytes(range(256)) * 1000
    await session.write_files({"a/b": content, "a/c.txt": b"c"})
    await bash(session, "ln -s a link; ln -s /etc/passwd p; mkfifo f 2>/dev/null; chmod 0 a/b")
    assert await session.read_files("**") == {"a/b": content, "a/c.txt": b"c"}
    assert await session.read_files("a/*.txt", "absent", "link/b") == {"a/c.txt": b"c"}
    with pytest.raises(SessionError, match="'a/b' is too large"):
      await session.read_files("a/*", limits=Limits(copy_out_bytes=100))
    with pytest.raises(SessionError, match="entries or time"):
      await session.read_files("**", limits=Limits(copy_out_entries=1))
    with pytest.raises(RequestError):
      await session.read_files("../x")
    with pytest.raises(RequestError):
      await session.write_files({"../x": b""})

  in_session(driver, steps)


def test_files_that_cannot_be_written(driver: Driver):
  """A session goes on after each; a link planted by a program leads nowhere but where it may."""

  async def steps(session: Session):
    await bash(session, "mkdir taken; ln -s /usr/lib out; ln -s /etc etc")
    for name in ("taken", "out/escape", "etc/passwd"):
      with pytest.raises(SessionError, match="not all written"):
        await session.write_files({name: b"x"})
    with pytest.raises(SessionError, match="not all written"):
      await session.write_files({"big": bytes(9 << 20)})
    await bash(session, "rm -f big; echo x >y")

  in_session(driver, steps, limits=Limits(disk_mb=8))


TREE = (
  "mkdir -p d/empty x; echo 1 >d/f; echo run >x/prog; chmod 755 x/prog; ln -s ../d/f x/link;"
  " ln -s /nowhere bad; chmod 0 d/f; touch -d '2001-02-03 04:05:06 UTC' x/prog; chmod 500 x"
)
SHOW = (
  "import os\n"
  "for base, dirs, files in sorted(os.walk('.')):\n"
  "  for n in sorted(dirs + files):\n"
  "    p = os.path.join(base, n); s = os.lstat(p)\n"
  "    print(p, oct(s.st_mode), os.path.islink(p) and os.readlink(p), end=' ')\n"
  "    print(int(s.st_mtime) if n == 'prog' else '')\n"
)


def test_snapshot_and_restore(driver: Driver):
  async def show(session: Session) -> bytes:
    return (await session.exec(("python3", "-c", SHOW))).stdout

  async def go():
    async with driver.pool.lease() as session:
      await bash(session, TREE)
      before = await show(session)
      assert b"./x/prog 0o100755 False 981173106\n" in before
      snapshot = await session.snapshot()
      await bash(
        session, "chmod 700 x; rm -rf d bad x/prog; mkdir -p bad/d; echo >new; chmod 0 bad"
      )
      await session.restore(snapshot)
      assert await show(session) == before
      assert (await session.read_files("**")) == {"d/f": b"1\n", "x/prog": b"run\n"}
    async with driver.pool.lease() as other:
      await other.restore(snapshot)
      await other.restore(snapshot)
      assert await show(other) == before

  driver.run(go())


def test_no_snapshot_of_what_is_too_much(driver: Driver):
  async def steps(session: Session):
    await bash(session, "mkdir -p $(printf 'd/%.0s' {1..70}); ")
    with pytest.raises(SessionError, match="too deep"):
      await session.snapshot()
    await bash(session, "rm -r d; for i in $(seq 120); do echo >$i; done")
    with pytest.raises(SessionError, match="entries or time"):
      await session.snapshot()

  in_session(driver, steps, limits=Limits(copy_out_entries=100))


def test_a_session_has_its_sandbox_to_itself_and_leaves_nothing(driver: Driver):
  async def go():
    size, look = driver.pool.config.size, "shopt -s nullglob dotglob; echo * /tmp/*"
    async with driver.pool.lease() as first, driver.pool.lease() as second:
      assert first.sandbox is not second.sandbox
      await bash(first, "echo 1 >f; echo >/tmp/t")
      assert await bash(second, look) == b"\n"
    runs = [driver.pool.run(Request(("bash", "-c", look))) for _ in range(2 * size)]
    assert {r.stdout for r in await asyncio.gather(*runs)} == {b"\n"}
    assert {first.sandbox.name, second.sandbox.name}.isdisjoint(s.name for s in driver.pool.idle())

  driver.run(go())


def test_a_disk_smaller_than_what_is_there(driver: Driver):
  if driver.pool.backend.name != "bwrap":
    pytest.skip("the disk of a container is fixed when it is made")

  async def steps(session: Session):
    await bash(session, "head -c 3000000 /dev/zero >f; for i in {1..2000}; do >$i; done")
    for disk_mb in (2, 3):  # too few bytes, too few files
      small = await session.exec(("touch", "g"), limits=Limits(disk_mb=disk_mb))
      assert (small.outcome, small.detail) == (Outcome.disk_limit, "")
    assert await bash(session, "ls | wc -l") == b"2001\n"

  in_session(driver, steps)


def test_limits_of_a_step(driver: Driver):
  async def steps(session: Session):
    result = await session.exec(("sleep", "60"), limits=Limits(wall_s=0.5))
    assert result.outcome == Outcome.timeout
    step = session.exec(("true",), limits=Limits(disk_mb=5))
    if driver.pool.backend.name == "bwrap":
      assert (await step).exit_code == 0
    else:
      with pytest.raises(RequestError, match="fixed"):
        await step
    await bash(session, "true")
    with pytest.raises(RequestError):
      await session.exec(())

  in_session(driver, steps)


def test_expired(driver: Driver):
  async def go():
    async with driver.pool.lease(idle_s=0.2) as session:
      await bash(session, "sleep 0.5; echo >f")  # a step is not idleness
      assert set(await session.read_files("f")) == {"f"}
      await asyncio.sleep(0.5)
      for _ in range(2):
        with pytest.raises(SessionExpired, match=r"not used for 0\.2 s"):
          await session.read_files("f")
      # Its place is free again while the session is still held.
      runs = [driver.pool.run(Request(("true",))) for _ in range(driver.pool.config.size)]
      assert {r.outcome for r in await asyncio.gather(*runs)} == {Outcome.exit}

  driver.run(go())


def test_closed(driver: Driver):
  session = in_session(driver, lambda session: session.close())
  with pytest.raises(SessionClosed):
    driver.run(session.exec(("true",)))


def test_lost(driver: Driver):
  async def steps(session: Session):
    step = asyncio.ensure_future(session.exec(("sleep", "300"), limits=Limits(wall_s=60)))
    await asyncio.sleep(0.3)
    vessel = session.sandbox.vessel
    await asyncio.gather(*(vessel.close() for _ in range(3)))  # and the pool, which finds it dead
    assert (await step).outcome == Outcome.sandbox_lost
    with pytest.raises(SessionLost):
      await session.snapshot()

  in_session(driver, steps)
  assert driver.run(driver.pool.run(Request(("true",)))).exit_code == 0


def test_closed_while_a_step_runs(driver: Driver):
  async def steps(session: Session):
    step = asyncio.ensure_future(session.exec(("sleep", "300"), limits=Limits(wall_s=60)))
    await asyncio.sleep(0.3)
    await session.close()
    assert (await step).outcome == Outcome.sandbox_lost
    with pytest.raises(SessionClosed):
      await session.exec(("true",))

  in_session(driver, steps)


def test_steps_take_turns(driver: Driver):
  async def steps(session: Session):
    script = "[ -e f ] && echo taken; touch f; sleep 0.2; rm f"
    told = await asyncio.gather(*(bash(session, script) for _ in range(4)))
    assert told == [b""] * 4

  in_session(driver, steps)


def test_the_pool_closes_its_sessions(tmp_path: Path):
  async def go():
    audit = tmp_path / "audit.jsonl"
    async with contextlib.AsyncExitStack() as stack:
      async with Pool(PoolConfig("bwrap", 1, audit_path=str(audit))) as pool:
        session = await stack.enter_async_context(pool.lease(tenant="t"))
        await bash(session, "echo SECRET", files={"f": b"SECRET"})
      with pytest.raises(SessionClosed):
        await session.exec(("true",))
    return audit.read_text()

  text = asyncio.run(go())
  entries = [json.loads(line) for line in text.splitlines()]
  steps = [e for e in entries if e.get("outcome") == "exit"]
  assert [(e["tenant"], "file:f" in e["sha256"]) for e in steps] == [("t", True)]
  assert "SECRET" not in text
