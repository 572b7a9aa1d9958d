"""Faults of the pool: kills, losses, cancellation; and that nothing is left behind."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sandbox_driver import Driver
from sandbox_host import descendants, processes

from sandbox_runner import (
  Outcome,
  Pool,
  PoolConfig,
  Request,
  Result,
)
from sandbox_runner.backends.bwrap import find_python
from sandbox_runner.cgroups import PREFIX, find_parents
from sandbox_runner.journal import Journal, reap

REPOSITORY = Path(__file__).parent.parent.parent


def run(driver: Driver, *argv: str, **fields) -> Result:
  return driver.run(driver.pool.run(Request(argv, **fields)))


def test_cancelled_call_kills_the_program(driver: Driver):
  async def cancel():
    call = asyncio.create_task(driver.pool.run(Request(("sleep", "4321"))))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
      await call
    return await driver.pool.run(Request(("echo", "next")))

  assert driver.run(cancel()).stdout == b"next\n"
  assert not _sleepers()


def test_closing_the_pool_cancels():
  async def close():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      calls = [asyncio.create_task(pool.run(Request(("sleep", "4321")))) for _ in range(3)]
      await asyncio.sleep(0.3)
    return await asyncio.gather(*calls)

  before = _launchers()
  results = asyncio.run(close())
  assert [r.outcome for r in results] == [Outcome.cancelled] * 3
  assert not _sleepers()
  assert _launchers() == before


def test_lost_sandbox_is_retried_once_then_reported():
  others = _launchers()

  async def lose(times: int) -> Result:
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      call = asyncio.create_task(pool.run(Request(("sh", "-c", "sleep 1.5; true", "4321"))))
      for _ in range(times):
        async with asyncio.timeout(60):
          while not _sleepers():  # a sandbox that dies before it runs the program is another case
            await asyncio.sleep(0.02)
          for pid in _launchers() - others:
            os.kill(pid, signal.SIGKILL)
          while _sleepers():
            await asyncio.sleep(0.02)
      return await call

  assert asyncio.run(lose(1)).outcome == Outcome.exit
  assert asyncio.run(lose(2)).outcome == Outcome.sandbox_lost


def test_launcher_killed_while_it_starts():
  """bwrap leaves a child behind if it dies while it makes its namespaces: none may stay."""
  others = _launchers()

  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:

      async def kill_for_a_second():
        chance = random.Random(0)
        for _ in range(30):
          await asyncio.sleep(chance.random() * 0.06)
          for pid in _launchers() - others:
            os.kill(pid, signal.SIGKILL)

      killer = asyncio.create_task(kill_for_a_second())
      while not killer.done():
        result = await pool.run(Request(("true",)))
        assert result.outcome in ("exit", "sandbox_lost", "infra_error")
      return await pool.run(Request(("echo", "healed")))

  before = _orphans()
  assert asyncio.run(go()).stdout == b"healed\n"
  assert _orphans() <= before
  assert _launchers() == others


@pytest.mark.parametrize("after", ["run", "close"])
def test_sandbox_that_died_idle(after: str):
  others = _launchers()
  runner = asyncio.Runner()
  pool = Pool(PoolConfig("bwrap", 1))
  runner.run(pool.__aenter__())
  for pid in _launchers() - others:
    os.kill(pid, signal.SIGKILL)
  time.sleep(0.3)  # the loop does not run: nobody has told the pool
  if after == "run":
    assert runner.run(pool.run(Request(("echo", "next")))).stdout == b"next\n"
  runner.run(pool.__aexit__(None, None, None))
  runner.close()
  assert _launchers() == others


@pytest.fixture
def own_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """Where no other runner that starts meanwhile finds, and reaps, what a dead one has left."""
  monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_kill9_of_the_runner_leaves_nothing(own_journals: None):
  code = (
    "import asyncio\n"
    "from sandbox_runner import *\n"
    "async def main():\n"
    "  async with Pool(PoolConfig('bwrap', 2)) as pool:\n"
    "    runs = [pool.run(Request(('sleep', '4321'))) for _ in range(2)]\n"
    "    print(pool.runner, flush=True)\n"
    "    await asyncio.gather(*runs)\n"
    "asyncio.run(main())\n"
  )
  parents, _ = find_parents()
  with subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
  ) as runner:
    name = runner.stdout.readline().strip()
    assert bool(_groups(parents, name)) == bool(parents)
    for _ in range(100):
      if len(_sleepers()) == 2:
        break
      time.sleep(0.05)
    below = descendants(runner.pid)
    assert len(_sleepers()) == 2
    runner.kill()
  for _ in range(100):
    if not set(below) & set(processes()):
      break
    time.sleep(0.05)
  assert not set(below) & set(processes())
  left = _groups(parents, name)
  assert bool(left) == bool(parents)
  assert set(reap()) >= {str(p) for p in left}
  assert not _groups(parents, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="this test is already run by an ordinary user")
def test_ordinary_user():
  """Another user, without control groups: isolation is the same, the limits are rlimits."""
  place = Path(tempfile.mkdtemp(prefix="sandbox_runner-test-"))
  place.chmod(0o755)
  shutil.copytree(REPOSITORY / "sandbox_runner", place / "sandbox_runner")
  code = (
    "import asyncio, json\n"
    "from sandbox_runner import *\n"
    "PROGRAMS = [\n"
    "  'import os; print(os.getuid()); os.setuid(0)',\n"
    "  'bytearray(1 << 30)',\n"
    "  'import os; os.kill(-1, 9)',\n"
    "  'import os; os.kill(1, 9); print(os.listdir(\"/proc/self/fd\"))',\n"
    '  \'open("/dev/f", "w")\',\n'
    "]\n"
    "async def main():\n"
    "  async with Pool(PoolConfig('bwrap', 1)) as pool:\n"
    "    for program in PROGRAMS:\n"
    "      r = await pool.run(Request(('python3', '-c', program)))\n"
    "      end = r.stderr.decode().splitlines()[-1:]\n"
    "      print(json.dumps([r.outcome, r.exit_code, r.stdout.decode(), end]))\n"
    "    print(json.dumps(r.limits_enforced['memory']))\n"
    "asyncio.run(main())\n"
  )
  done = subprocess.run(
    [find_python()[0], "-B", "-c", code],
    cwd=place,
    env={"XDG_RUNTIME_DIR": "", "PATH": os.environ["PATH"]},
    user=65534,
    group=65534,
    extra_groups=[],
    capture_output=True,
    text=True,
    check=False,
  )
  shutil.rmtree(place)
  assert done.returncode == 0, done.stderr
  setuid, memory, killed, descriptors, device, limit = map(json.loads, done.stdout.splitlines())
  assert setuid[:3] == ["exit", 1, "65534\n"]
  assert memory[3] == ["MemoryError"]
  assert killed[3] == ["ProcessLookupError: [Errno 3] No such process"]
  assert descriptors == ["exit", 0, "['0', '1', '2', '3']\n", []]
  assert device[3] == ["OSError: [Errno 30] Read-only file system: '/dev/f'"]
  assert limit == "rlimit for each process"


@pytest.mark.docker
@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_kill9_leaves_no_container(runtime: str, own_journals: None):
  code = (
    "import asyncio\n"
    "from sandbox_runner import *\n"
    "async def main():\n"
    f"  async with Pool(PoolConfig('docker', 1, runtime='{runtime}')) as pool:\n"
    "    print(pool.idle()[0].name, flush=True)\n"
    "    await pool.run(Request(('sleep', '4321')))\n"
    "asyncio.run(main())\n"
  )
  with subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
  ) as runner:
    name = runner.stdout.readline().strip()
    assert _containers(name) == [name]
    time.sleep(0.5)
    runner.kill()
  reap()
  for _ in range(100):
    if not _containers(name):
      break
    time.sleep(0.1)
  assert not _containers(name)
  assert not _sleepers()


def test_reaper_leaves_the_living_alone():
  journal = Journal.create()
  journal.add("cgroups", ["/nowhere"])
  reap()
  assert journal.path.exists()
  journal.close(all_removed=True)


def _launchers() -> set[int]:
  """The bwrap processes below this one that the host can see as such."""
  found = set()
  for pid, state in descendants(os.getpid()).items():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      command = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
      if state != "Z" and command.endswith(b"bwrap"):
        found.add(pid)
  return found


def _orphans() -> set[int]:
  """Living bwrap processes without the process that started them."""
  found = set()
  for pid, (parent, state) in processes().items():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      if parent == 1 and state != "Z" and b"bwrap" in Path(f"/proc/{pid}/cmdline").read_bytes():
        found.add(pid)
  return found


def _sleepers() -> list[int]:
  found = []
  for pid, (_, state) in processes().items():
    try:
      if state != "Z" and b"\x004321\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
        found.append(pid)
    except (FileNotFoundError, ProcessLookupError):
      continue
  return found


def _containers(name: str) -> list[str]:
  command = ["docker", "ps", "-a", "--filter", f"name={name}", "--format", "{{.Names}}"]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _groups(parents, runner: str) -> set[Path]:
  """The control groups of this runner."""
  directories = set(parents.directories.values()) if parents else ()
  return {path for d in directories for path in d.glob(f"{PREFIX}{runner}-*")}
