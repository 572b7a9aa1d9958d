"""The hostile suite by a user who is not root: no control group, no range of users to map."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from pytest_files import pytest_files

from sandbox_runner.backends.bwrap import find_python

REPOSITORY = Path(__file__).parent.parent.parent
COPIED = ("sandbox_runner", "tests/hostile", "tests/sandbox_runner")
NOBODY = 65534


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="this user is an ordinary one: run test_hostile.py")
def test_hostile_suite(open_directory: Path):
  """Every case ends as under root; what cannot be enforced is in `limits_enforced`."""
  for name in COPIED:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / name, open_directory / name, ignore=ignored)
  for name in ("setup.cfg", "tests/conftest.py", "tests/hostile_table.py"):
    shutil.copy(REPOSITORY / name, open_directory / name)
  for name, content in pytest_files().items():
    path = open_directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  for directory, _, _ in os.walk(open_directory):
    os.chown(directory, NOBODY, NOBODY)
  command = [find_python()[0], "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "bwrap"]
  command += ["--basetemp", str(open_directory / "base"), "tests/sandbox_runner/test_hostile.py"]
  done = subprocess.run(
    command,
    cwd=open_directory,
    env={"PATH": os.environ["PATH"], "HOME": str(open_directory), "PYTHONPATH": "."},
    user=NOBODY,
    group=NOBODY,
    extra_groups=[],
    capture_output=True,
    text=True,
    check=False,
    timeout=400,
  )
  failures = done.stdout.partition("= FAILURES")[2].partition("= hostile suite")[0]
  assert done.returncode == 0, failures[-6000:] + done.stderr[-2000:]
  assert "failed" not in done.stdout
  print(done.stdout)
