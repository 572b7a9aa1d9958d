"""bwrap where no control group can be written: the supervisor counts a run's processes."""

from collections.abc import Iterator

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, PoolConfig, Request, Result
from sandbox_runner.backends import bwrap


@pytest.fixture(scope="module")
def groupless() -> Iterator[Driver]:
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(bwrap, "find_parents", lambda: (None, "none for this test"))
    made = Driver(PoolConfig("bwrap", 1))
    yield made
    made.close()


def run(driver: Driver, code: str, **limits) -> Result:
  return driver.run(driver.pool.run(Request(("python3", "-c", code), limits=Limits(**limits))))


BOMBS = {
  "forks": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
  "tree": (
    "import os, time\nfor _ in range(9):\n  try: os.fork()\n  except OSError: pass\ntime.sleep(9)\n"
  ),
  "threads": (
    "import threading, time\nwhile True:\n"
    "  try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
    "  except RuntimeError: time.sleep(0.01)\n"
  ),
  "sessions": (
    "import os, time\nwhile True:\n"
    "  try:\n"
    "    if os.fork() == 0: os.setsid(); time.sleep(9)\n"
    "  except OSError: time.sleep(0.01)\n"
  ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_ended_for_it(groupless: Driver, bomb: str):
  result = run(groupless, BOMBS[bomb], pids=20, memory_mb=4096, wall_s=60, cpu_s=60)
  assert result.outcome == Outcome.pids_limit, result
  assert run(groupless, "print(1)").stdout == b"1\n"


def test_never_many_more_than_asked_for(groupless: Driver):
  """What the supervisor has not seen yet, the kernel refuses."""
  code = (
    "import os, time\n"
    "n = 0\n"
    "try:\n"
    "  while n < 500:\n"
    "    if os.fork() == 0: time.sleep(9)\n"
    "    n += 1\n"
    "except OSError: pass\n"
    "os.write(1, b'%d' % n)\n"
    "time.sleep(9)\n"
  )
  result = run(groupless, code, pids=20)
  assert result.outcome == Outcome.pids_limit
  assert int(result.stdout or b"0") < 20 + bwrap.SEEN_PIDS


def test_as_many_as_asked_for(groupless: Driver):
  code = "import os, time\nfor _ in range(14):\n  if os.fork() == 0: time.sleep(9)\ntime.sleep(1)"
  assert run(groupless, code, pids=15).outcome == Outcome.exit
  threads = (
    "import threading, time\n"
    "for _ in range(14): threading.Thread(target=time.sleep, args=(1,)).start()\n"
  )
  assert run(groupless, threads, pids=15).outcome == Outcome.exit


def test_it_says_so(groupless: Driver):
  enforced = run(groupless, "pass").limits_enforced
  assert enforced["pids"] == "supervisor; rlimit for the task's user, 32 above"
  assert enforced["memory"] == "rlimit for each process"
