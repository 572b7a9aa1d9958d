"""Runs that the runner ends for processes or disk, and programs that meet a limit and go on."""

import signal

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, Request, Result


def run(driver: Driver, *argv: str, **limits) -> Result:
  return driver.run(driver.pool.run(Request(argv, limits=Limits(**limits))))


def backend(driver: Driver) -> str:
  return driver.pool.backend.name


def test_a_fork_bomb_is_ended_for_it(driver: Driver):
  bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
  result = run(driver, "python3", "-c", bomb, wall_s=60, cpu_s=60)
  accepted = {Outcome.pids_limit}
  if backend(driver) == "docker+runsc":  # it can also exhaust the guest kernel's memory first
    accepted |= {Outcome.oom, Outcome.sandbox_lost}
  assert result.outcome in accepted, result


def test_a_refused_fork_is_no_end(driver: Driver):
  """100 forks under a limit of 20: the kernel refuses some, or (gVisor) the supervisor ends it."""
  code = (
    "import os, time\n"
    "refused = 0\n"
    "for _ in range(100):\n"
    "  try:\n"
    "    if os.fork() == 0: time.sleep(20); os._exit(0)\n"
    "  except OSError: refused += 1\n"
    "time.sleep(1)\n"
    "print(refused > 0)\n"
  )
  # Under gVisor all of them may be there before the supervisor looks: memory must not end first.
  result = run(driver, "python3", "-c", code, pids=20, memory_mb=2048)
  if backend(driver) == "docker+runsc":
    assert result.outcome == Outcome.pids_limit
  else:
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.exit, 0, b"True\n")


def test_as_many_processes_as_asked_for(driver: Driver):
  code = "import os, time\nfor _ in range(14):\n  if os.fork() == 0: time.sleep(9)\ntime.sleep(1)"
  result = run(driver, "python3", "-c", code, pids=15)
  assert (result.outcome, result.exit_code) == (Outcome.exit, 0), result


def test_orphans_do_not_fill_the_limit(driver: Driver):
  """More of them than `pids`, one after another: each is reaped while the run goes on."""
  code = (
    "import os\n"
    "for _ in range(60):\n"
    "  if os.fork() == 0:\n"
    "    if os.fork() == 0: os._exit(0)\n"
    "    os._exit(0)\n"
    "  os.wait()\n"
    "print('all')\n"
  )
  result = run(driver, "python3", "-c", code, pids=12)
  assert (result.outcome, result.stdout) == (Outcome.exit, b"all\n"), result


def test_no_space_left_is_no_end(driver: Driver):
  code = (
    "import time\n"
    "try:\n"
    "  with open('f', 'wb', buffering=0) as f:\n"
    "    while f.write(bytes(1 << 20)) == 1 << 20: pass\n"
    "  raise OSError\n"
    "except OSError: time.sleep(0.5); print('full')\n"
  )
  result = run(driver, "python3", "-c", code, disk_mb=8)
  assert (result.outcome, result.stdout) == (Outcome.exit, b"full\n")


def test_all_places_together(driver: Driver):
  """Where each place has a size of its own, the sum is watched; with one tmpfs the kernel does."""
  code = (
    "import time\n"
    "try:\n"
    "  open('f', 'wb').write(bytes(7 << 20))\n"
    "  open('/tmp/f', 'wb').write(bytes(1500 << 10))\n"
    "except OSError: print('full')\n"
    "time.sleep(3)\n"
  )
  result = run(driver, "python3", "-c", code, disk_mb=8)
  if backend(driver) == "bwrap":
    assert (result.outcome, result.stdout) == (Outcome.exit, b"full\n")
  else:
    assert result.outcome == Outcome.disk_limit


def test_a_file_larger_than_the_disk(driver: Driver):
  """A hole takes no room; what is written does, wherever in the file."""
  code = (
    "import errno, os\n"
    "f = os.open('f', os.O_CREAT | os.O_RDWR)\n"
    "os.truncate(f, 1 << 40)\n"
    "os.pwrite(f, b'end', (1 << 40) - 3)\n"
    "n = 0\n"
    "try:\n"
    "  while n < 64 << 20: n += os.pwrite(f, bytes(1 << 20), n)\n"
    "except OSError as e: print(errno.errorcode[e.errno], n <= 8 << 20)\n"
  )
  result = run(driver, "python3", "-c", code, disk_mb=8)
  assert (result.outcome, result.stdout) == (Outcome.exit, b"ENOSPC True\n"), result


@pytest.mark.parametrize("name", ["XFSZ", "XCPU", "KILL"])
def test_a_signal_that_a_limit_would_send_says_nothing(driver: Driver, name: str):
  result = run(driver, "bash", "-c", f"kill -{name} $$")
  assert (result.outcome, result.signal) == (Outcome.signal, signal.Signals[f"SIG{name}"])


@pytest.mark.parametrize("name", ["pids", "disk"])
def test_results_say_by_what(driver: Driver, name: str):
  by = run(driver, "true").limits_enforced[name]
  assert ("supervisor" in by) == (
    backend(driver) == "docker+runsc" or (name == "disk" and backend(driver) != "bwrap")
  )
