import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def python():
  """Runs this Python with arguments, from the root of the project, as a user would."""

  def run(*args, env=None, **kwargs):
    # The program's own directory comes first, so that its configs can import it.
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100", **(env or {})}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(
      command, capture_output=True, text=True, cwd=ROOT, env=env, check=False, timeout=120, **kwargs
    )

  return run


@pytest.fixture
def assert_user_error():
  """Status 2 and exactly one line on stderr."""

  def check(result, *words):
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("ptjax: error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr + result.stdout
    for word in words:
      assert word in result.stderr

  return check
