"""The pool's contract: results, limits, retries, cancellation, audit, and what is left behind."""

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
  Limits,
  NoBackendError,
  Outcome,
  Pool,
  PoolConfig,
  Request,
  RequestError,
  Result,
  detect_backends,
)
from sandbox_runner.backends.bwrap import find_python
from sandbox_runner.cgroups import PREFIX, find_parents
from sandbox_runner.journal import Journal, reap

REPOSITORY = Path(__file__).parent.parent.parent


def run(driver: Driver, *argv: str, **fields) -> Result:
  return driver.run(driver.pool.run(Request(argv, **fields)))


def test_result_fields(driver: Driver):
  code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"
  result = run(driver, "python3", "-c", code)
  assert (result.outcome, result.exit_code, result.signal) == (Outcome.exit, 5, None)
  assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
  assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)
  assert not result.stdout_truncated
  assert not result.is_infra_failure
  assert 0 < result.cpu_s < 10
  assert result.peak_memory_bytes > 1 << 20
  assert {"wall", "cpu", "memory", "pids", "disk", "output", "network"} <= set(
    result.limits_enforced
  )


@pytest.mark.parametrize("fork", [True, False])
def test_fork_path_is_a_python_like_any_other(driver: Driver, fork: bool):
  """The same program, by the warm interpreter and by a new one, sees the same world."""
  files = {
    "helper.py": b"WHO = __name__\n",
    "main.py": (
      b"import atexit, helper, os, sys\n"
      b"atexit.register(lambda: print('at exit'))\n"
      b"f = open('kept', 'w'); f.write('flushed?')\n"
      b"print(__name__, __file__, sys.argv, sys.path[0], helper.WHO, os.getcwd(), os.getuid())\n"
      b"print(sorted(os.environ), sys.modules['__main__'].__file__, os.getsid(0) == os.getpid())\n"
      b"print(sorted(os.listdir('/proc/self/fd')), sys.stdin.read(), os.umask(0o22))\n"
      b"class A:\n"
      b"  def __del__(self): print('dropped')\n"
      b"a = A()\n"
      b"raise ValueError('end')\n"
    ),
  }
  # a variable of Python's own makes the pool start a new interpreter
  env = {"MINE": "1"} | ({} if fork else {"PYTHONHASHSEED": "0"})
  result = run(driver, "python3", "main.py", "x", files=files, env=env, stdin=b"in")
  lines = result.stdout.decode().splitlines()
  assert lines[0] == "__main__ /work/main.py ['main.py', 'x'] /work helper /work 65534"
  assert lines[1] == f"{sorted({'HOME', 'LANG', 'PATH'} | set(env))} /work/main.py True"
  assert lines[2] == "['0', '1', '2', '3', '4'] in 18"  # the open file, and the listing
  assert lines[3:] == ["at exit", "dropped"]
  trace = result.stderr.decode()
  assert trace.startswith('Traceback (most recent call last):\n  File "/work/main.py", line 10')
  assert trace.endswith("ValueError: end\n")
  assert result.exit_code == 1


@pytest.mark.parametrize(
  ("code", "exit_code", "stderr"),
  [
    ("import sys; sys.exit('words')", 1, b"words\n"),
    ("raise SystemExit(300)", 44, b""),
    ("import sys; sys.exit(-1)", 255, b""),
    ("exit()", 0, b""),
  ],
)
def test_exit_of_python(driver: Driver, code: str, exit_code: int, stderr: bytes):
  result = run(driver, "python3", "-c", code)
  assert (result.exit_code, result.stderr) == (exit_code, stderr)


def test_syntax_error_is_the_programs(driver: Driver):
  result = run(driver, "python3", "main.py", files={"main.py": b"def f(:\n"})
  assert result.exit_code == 1
  assert result.stderr.startswith(b'  File "/work/main.py", line 1\n')


def test_file_wins_over_loaded_module(driver: Driver):
  files = {"main.py": b"import json; print(json.MINE)", "json.py": b"MINE = 'mine'"}
  assert run(driver, "python3", "main.py", files=files).stdout == b"mine\n"


def test_forks_do_not_share_randomness(driver: Driver):
  seen = {
    run(driver, "python3", "-c", "import random; print(random.random())").stdout for _ in "ab"
  }
  assert len(seen) == 2


def test_output_cap_counts_exactly(driver: Driver):
  limits = Limits(output_bytes=1000)
  at_cap = run(driver, "python3", "-c", "print('x' * 999)", limits=limits)
  assert (at_cap.outcome, at_cap.stdout_bytes, at_cap.stdout_truncated) == ("exit", 1000, False)
  over = run(driver, "python3", "-c", "print('x' * 1000)", limits=limits)
  assert (over.outcome, over.stdout_bytes, len(over.stdout)) == ("output_limit", 1001, 1000)
  assert over.stdout_truncated
  assert not over.stderr_truncated


def test_cpu_time_counts_children(driver: Driver):
  code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
  result = run(driver, "python3", "-c", code, limits=Limits(cpu_s=1, wall_s=30))
  assert result.outcome == Outcome.timeout
  assert result.wall_s < 15


def test_missing_program_is_no_exit_code(driver: Driver):
  result = run(driver, "no-such-program")
  assert result.outcome == Outcome.infra_error
  assert result.is_infra_failure
  assert "no-such-program" in result.detail


def test_disk_limit_is_of_the_request(driver: Driver):
  code = "open('f', 'wb').write(bytes(6 << 20))"
  small = run(driver, "python3", "-c", code, limits=Limits(disk_mb=4))
  assert small.exit_code == 1
  assert run(driver, "python3", "-c", code, limits=Limits(disk_mb=64)).exit_code == 0


def test_bad_requests_are_refused(driver: Driver):
  for bad in (
    Request(()),
    Request(("a\0b",)),
    Request(("\ud800",)),
    Request(("true",), env={"A=B": "1"}),
    Request(("true",), files={"a": b"", "a/b": b""}),
    Request(("true",), files={"a": "text"}),
  ):
    with pytest.raises(RequestError):
      driver.run(driver.pool.run(bad))


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
      call = asyncio.create_task(pool.run(Request(("sleep", "1.5"))))
      for _ in range(times):
        await asyncio.sleep(0.4)
        for pid in _launchers() - others:
          os.kill(pid, signal.SIGKILL)
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


def test_kill9_of_the_runner_leaves_nothing():
  code = (
    "import asyncio\n"
    "from sandbox_runner import *\n"
    "async def main():\n"
    "  async with Pool(PoolConfig('bwrap', 2)) as pool:\n"
    "    runs = [pool.run(Request(('sleep', '4321'))) for _ in range(2)]\n"
    "    print('started', flush=True)\n"
    "    await asyncio.gather(*runs)\n"
    "asyncio.run(main())\n"
  )
  parents, _ = find_parents()
  before = _groups(parents)
  with subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=REPOSITORY
  ) as runner:
    assert runner.stdout.readline() == b"started\n"
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
  left = _groups(parents) - before
  assert bool(left) == bool(parents)
  assert set(reap()) >= {str(p) for p in left}
  assert not _groups(parents) - before


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
def test_kill9_leaves_no_container(runtime: str):
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
  journal.close()


def test_audit_has_hashes_and_no_text(tmp_path: Path):
  async def run_two():
    path = str(tmp_path / "audit.jsonl")
    async with Pool(PoolConfig("bwrap", 1, audit_path=path)) as pool:
      await pool.run(Request(("echo", "SECRET"), {"f": b"SECRET"}, tenant="code"))
      with pytest.raises(RequestError):
        await pool.run(Request(("true",), {"../f": b""}))
    return Path(path).read_text()

  text = asyncio.run(run_two())
  first, second = [json.loads(line) for line in text.splitlines()]
  assert "SECRET" not in text
  assert (first["tenant"], first["outcome"], first["exit_code"]) == ("code", "exit", 0)
  assert set(first["sha256"]) == {"argv", "stdin", "file:f"}
  assert second["outcome"] == "rejected"


def test_no_backend_is_one_line_with_the_command(monkeypatch, tmp_path: Path):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(NoBackendError) as caught:
    asyncio.run(Pool(PoolConfig()).__aenter__())
  assert "\n" not in str(caught.value)
  assert "apt-get install -y bubblewrap" in str(caught.value)
  assert [s.available for s in detect_backends()] == [False, False]


@pytest.mark.parametrize("bad", [{"size": 0}, {"backend": "podman"}, {"runtime": "kata"}])
def test_bad_config(bad: dict):
  with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
    PoolConfig(**bad)


@pytest.mark.parametrize(
  "bad", [{"wall_s": 0}, {"memory_mb": 1}, {"pids": 0}, {"output_bytes": -1}]
)
def test_bad_limits(bad: dict):
  with pytest.raises(ValueError, match=next(iter(bad))):
    Limits(**bad)


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


def _groups(parents) -> set[Path]:
  """The control groups of this package on this host."""
  directories = set(parents.directories.values()) if parents else ()
  return {path for d in directories for path in d.glob(PREFIX + "*")}
