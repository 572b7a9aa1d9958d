"""What a result says that a run has used, by the kernel's counters."""

import pytest
from sandbox_driver import Driver

from sandbox_runner import Request, Result

ZEROS = "/dev/zero"


def run(driver: Driver, *argv: str, **fields) -> Result:
  result = driver.run(driver.pool.run(Request(argv, **fields)))
  assert result.exit_code == 0, result
  return result


def counts_children(driver: Driver) -> bool:
  return driver.pool.backend.name != "docker+runsc"


@pytest.mark.parametrize("fork", [True, False])
def test_bytes_read_and_written(driver: Driver, fork: bool):
  code = (
    "open('f', 'wb').write(bytes(3_000_000)); open('f', 'rb').read(2_000_000); print('x' * 999)"
  )
  env = {} if fork else {"PYTHONHASHSEED": "0"}  # a variable of Python's makes a new interpreter
  plain = run(driver, "python3", "-c", "pass", env=env)
  result = run(driver, "python3", "-c", code, env=env)
  assert 3_001_000 <= result.bytes_written - plain.bytes_written < 3_010_000
  assert 2_000_000 <= result.bytes_read - plain.bytes_read < 3_100_000


def test_bytes_of_children_that_were_waited_for(driver: Driver):
  script = f"head -c 5000000 {ZEROS} >f; head -c 1000 f"
  written = run(driver, "bash", "-c", script).bytes_written
  assert (5_001_000 <= written < 5_100_000) == counts_children(driver)


def test_bytes_of_a_run_that_was_ended(driver: Driver):
  code = "import os; open('f', 'wb').write(bytes(5_000_000)); os.kill(os.getpid(), 9)"
  result = driver.run(driver.pool.run(Request(("python3", "-c", code))))
  assert result.signal == 9
  assert 5_000_000 <= result.bytes_written < 5_100_000


def test_what_is_printed_counts_for_what_it_is(driver: Driver):
  text = '{"io": [1, 2], "processes": 99, "bytes_written": 1}'
  result = run(driver, "echo", text)
  assert result.processes == 1
  assert len(text) <= result.bytes_written < 1000


@pytest.mark.parametrize(
  ("code", "processes"),
  [
    ("pass", 1),
    ("import os\nfor _ in range(5):\n  if os.fork() == 0: os._exit(0)", 6),
    ("import os\nfor _ in range(3):\n  if os.fork(): os.wait()", 8),
    ("import threading as t\nfor _ in range(7): t.Thread(target=int).start()", 8),
    ("import os\nif os.fork() == 0: os.setsid(); os.fork()\nelse: os.wait()", 3),
  ],
)
def test_processes_and_threads(driver: Driver, code: str, processes: int):
  assert run(driver, "python3", "-c", code).processes == processes
