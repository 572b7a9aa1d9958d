"""The pool's contract: results, limits, bad input, audit."""

import asyncio
import json
from pathlib import Path

import pytest
from sandbox_driver import Driver

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


def test_audit_has_hashes_and_no_text(tmp_path: Path):
  async def run_two():
    path = str(tmp_path / "audit.jsonl")
    async with Pool(PoolConfig("bwrap", 1, audit_path=path)) as pool:
      await pool.run(Request(("echo", "SECRET"), {"f": b"SECRET"}, tenant="code"))
      with pytest.raises(RequestError):
        await pool.run(Request(("true",), {"../f": b""}))
    return Path(path).read_text()

  text = asyncio.run(run_two())
  entries = [json.loads(line) for line in text.splitlines()]
  first, second = [e for e in entries if e["event"] == "run"]
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
