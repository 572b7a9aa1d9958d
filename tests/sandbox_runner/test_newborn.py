"""The process that waits for the next task: what it may not have, and that it is not missed."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, Request, Result
from sandbox_runner.guest import kernel
from sandbox_runner.guest.watch import Watch
from sandbox_runner.protocol import Report
from sandbox_runner.sandbox import Sandbox, judge

CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
FILTERS = "2"  # that of all in a sandbox, and that of tasks


def run(driver: Driver, *argv: str, **fields) -> Result:
  return driver.run(driver.pool.run(Request(argv, **fields)))


def newborn(driver: Driver, sandbox: Sandbox) -> int:
  """Its number on this host, once it is all that it can be without a task."""
  driver.run(sandbox.read_back((), Limits(), tree=False))  # answered when it has been started
  group = getattr(sandbox.vessel, "group", None) or sandbox.vessel.counters
  deadline = time.monotonic() + 10
  while time.monotonic() < deadline:
    for pid in group.processes():
      if status(pid)["Seccomp_filters"] == FILTERS and not os.path.exists(f"/proc/{pid}/fd/4"):
        return pid
    time.sleep(0.01)
  raise AssertionError(group.processes())


def status(pid: int) -> dict[str, str]:
  lines = Path(f"/proc/{pid}/status").read_text().splitlines()
  return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def waiting(driver: Driver) -> int:
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("its processes are the guest kernel's, and out of this host's sight")
  run(driver, "true")  # tests before this one may have left no sandbox that is idle
  return newborn(driver, driver.pool.idle()[-1])


def test_it_has_given_up_all_that_a_task_may_not_have(driver: Driver, waiting: int):
  found = status(waiting)
  assert [found[name] for name in CAPABILITIES] == ["0000000000000000"] * 5
  assert found["NoNewPrivs"] == "1"
  assert set(found["Uid"].split()) in ({"65534"}, {str(2_000_000_000 + 65534)})
  assert set(found["Groups"].split()) <= {found["Gid"].split()[0]}
  links = {fd: os.readlink(f"/proc/{waiting}/fd/{fd}") for fd in os.listdir(f"/proc/{waiting}/fd")}
  assert {fd: link.partition(":")[0] for fd, link in links.items()} == {
    "0": "pipe",
    "1": "pipe",
    "2": "pipe",
    "3": "socket",
  }
  assert os.readlink(f"/proc/{waiting}/cwd").endswith("/work")


def test_nobody_may_look_into_it(driver: Driver, waiting: int):
  """The kernel gives the files of such a process to the root of its namespace, not to its user."""
  owner = os.stat(f"/proc/{waiting}/environ").st_uid
  assert str(owner) != status(waiting)["Uid"].split()[0]


def test_one_that_is_gone_is_not_missed(driver: Driver, waiting: int):
  os.kill(waiting, signal.SIGKILL)
  while status(waiting)["State"][0] != "Z":  # the supervisor looks for it when a task comes
    time.sleep(0.001)
  result = run(driver, "python3", "-c", "print(1)")
  assert (result.outcome, result.stdout, result.processes) == (Outcome.exit, b"1\n", 1), result


def test_one_that_goes_as_its_task_comes_is_no_end_of_the_program():
  ended = Report("exit", signal.SIGKILL, "its process was gone", 0.1, 0.0, 0, (0, 0))
  assert judge(ended, 0, 0.0, Limits(), None)[0] == Outcome.infra_error
  assert judge(ended, 1, 0.0, Limits(), None)[0] == Outcome.oom


@pytest.mark.parametrize(
  ("whole", "used", "reported"), [(0.5, 0.1, 0.4), (0.05, 0.1, 0.0), (2.01, 0.1, 2.01)]
)
def test_time_before_the_task_is_not_the_tasks(whole: float, used: float, reported: float):
  """But where the kernel ended it for its time, its own count is what is said."""
  watch = object.__new__(Watch)
  watch.task, watch.used_s = {"cpu_s": 2}, used
  watch.usage = SimpleNamespace(ru_utime=whole / 2, ru_stime=whole / 2)
  assert watch.cpu_s() == pytest.approx(reported)


def test_files_are_not_held_in_the_tasks_memory(driver: Driver):
  """In the work directory they count, once."""
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("there the supervisor and the guest's kernel, which hold them as well, count too")
  limits = Limits(memory_mb=48, disk_mb=40)
  result = run(driver, "wc", "-c", "f", files={"f": bytes(28 << 20)}, limits=limits)
  assert (result.outcome, result.stdout) == (Outcome.exit, b"%d f\n" % (28 << 20)), result


def test_disk_limits_of_one_session_follow_each_other(driver: Driver):
  if driver.pool.backend.name != "bwrap":
    pytest.skip("docker's are fixed for a session")
  code = "open('f', 'wb').write(bytes(6 << 20))"

  async def go():
    async with driver.pool.lease() as session:
      for disk_mb, exit_code in ((4, 1), (64, 0), (64, 0)):
        result = await session.exec(("python3", "-c", code), limits=Limits(disk_mb=disk_mb))
        assert result.exit_code == exit_code, (disk_mb, result)
      small = await session.exec(("true",), limits=Limits(disk_mb=1))  # less than there is in it
      assert (small.outcome, small.detail) == (Outcome.disk_limit, ""), small
      assert (await session.exec(("true",))).exit_code == 0

  driver.run(go())


def test_a_file_of_an_earlier_step_wins_over_a_loaded_module(driver: Driver):
  async def go():
    async with driver.pool.lease() as session:
      await session.write_files({"lib/json.py": b"MINE = 'mine'", "lib/main.py": b"import json"})
      for argv, cwd in ((("-c", "import json; print(json.MINE)"), "lib"), (("lib/main.py",), "")):
        result = await session.exec(("python3", *argv), cwd=cwd)
        assert result.exit_code == 0, result
      plain = await session.exec(("python3", "-c", "import json; print(json.MINE)"))
      assert plain.exit_code == 1

  driver.run(go())


def test_a_refused_fork_is_tried_again(monkeypatch):
  monkeypatch.setattr(kernel, "FORK_S", 0.1)
  answers = [OSError(errno.EAGAIN, "not yet"), OSError(errno.ENOMEM, "not yet"), 7]

  def fork():
    answer = answers.pop(0) if answers else OSError(errno.EAGAIN, "never")
    if isinstance(answer, OSError):
      raise answer
    return answer

  assert kernel.patiently(fork) == 7
  with pytest.raises(OSError, match="never"):
    kernel.patiently(fork)
  answers.append(OSError(errno.EPERM, "not allowed"))
  with pytest.raises(OSError, match="not allowed"):
    kernel.patiently(fork)


def test_what_the_runner_ignores_or_blocks_is_not_the_programs():
  """A runner that nohup or a shell has started in the background."""
  code = (
    "import asyncio, signal\n"
    "from sandbox_runner import *\n"
    "for which in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):\n"
    "  signal.signal(which, signal.SIG_IGN)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGINT})\n"
    "SHOW = 'import signal; print(signal.getsignal(2) is signal.default_int_handler)'\n"
    "PROGRAMS = ('grep', '-E', '^Sig(Ign|Blk)', '/proc/self/status'), ('python3', '-c', SHOW)\n"
    "async def main():\n"
    "  async with Pool(PoolConfig('bwrap', 1)) as pool:\n"
    "    for program in PROGRAMS:\n"
    "      print((await pool.run(Request(program))).stdout.decode(), end='')\n"
    "asyncio.run(main())\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    cwd=Path(__file__).parent.parent.parent,
    check=True,
  )
  blocked, ignored, handler = done.stdout.splitlines()
  of_libc = 1 << 31 | 1 << 32  # 32 and 33, which it keeps to itself and lets nobody set
  assert int(blocked.removeprefix("SigBlk:"), 16) == 0
  assert int(ignored.removeprefix("SigIgn:"), 16) & ~of_libc == 0
  assert handler == "True"
