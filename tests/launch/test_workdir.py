import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ptjax.launch import workdir

ROOT = Path(__file__).parents[2]

HOLD = """
import sys, time
from ptjax.launch import workdir
with workdir.hold(sys.argv[1]):
  print("held", flush=True)
  time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
  """A live process that holds the workdir."""
  command = [sys.executable, "-c", HOLD, str(tmp_path)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()


def test_a_live_run_keeps_its_workdir(tmp_path, holder):
  expected = rf"in use by process {holder.pid} on {socket.gethostname()}; stop that run or choose"
  with pytest.raises(workdir.WorkdirInUseError, match=expected):
    with workdir.hold(tmp_path):
      pass
  with workdir.hold(tmp_path / "other"):
    pass


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path, holder):
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  assert json.loads((tmp_path / ".lock").read_text())["pid"] == holder.pid, "left behind"
  with workdir.hold(tmp_path):
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
  assert (tmp_path / ".lock").read_text() == ""
  with workdir.hold(tmp_path):
    pass


def test_the_command_refuses_a_live_workdir(tmp_path, holder, python, assert_user_error):
  program = ROOT / "tests" / "launch" / "toy_program.py"
  result = python(program, "--workdir", tmp_path, "--gin_bindings", "Toy.seed = 1")
  assert_user_error(result, f"in use by process {holder.pid}", "choose another --workdir")


def test_paths_that_cannot_be_a_workdir(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(FileExistsError):
    with workdir.hold(tmp_path / "file"):
      pass
  with pytest.raises(ValueError, match=r"gs://bucket/run is remote; mount the bucket"):
    with workdir.hold("gs://bucket/run"):
      pass
