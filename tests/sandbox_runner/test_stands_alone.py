"""sandbox_runner without site packages, and the examples of its documentation run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_runner.images import describe
from sandbox_runner.images.store import find_tree

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
  r"^```python\n(.*?)^```$", (ROOT / "docs/sandbox_runner.md").read_text(), re.M | re.S
)
ALONE = "import sys; sys.path.append(sys.argv.pop(1))\n"
IMPORT_ALL = """
import importlib, pkgutil, sandbox_runner
names = [m.name for m in pkgutil.walk_packages(sandbox_runner.__path__, "sandbox_runner.")]
for name in names:
  if not name.endswith("__main__"): importlib.import_module(name)
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(len(names), sorted(foreign - {"__main__"}))
"""
COMMAND_LINE = "import runpy; runpy.run_module('sandbox_runner', run_name='__main__')"
RUN_EXAMPLE = """
import ast, asyncio, warnings
warnings.simplefilter("error")
code = compile(sys.stdin.read(), "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, {"__name__": "__main__"}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
  """A directory with this package and nothing else."""
  directory = tmp_path_factory.mktemp("alone")
  shutil.copytree(ROOT / "sandbox_runner", directory / "sandbox_runner")
  return directory


def alone(package: Path, code: str, *arguments: str, **more) -> subprocess.CompletedProcess:
  """In an interpreter that sees no site packages, no variables and no other directory."""
  return subprocess.run(
    [sys.executable, "-I", "-S", "-c", ALONE + code, str(package), *arguments],
    capture_output=True,
    text=True,
    cwd=package,
    timeout=120,
    check=False,
    **{"stdin": subprocess.DEVNULL, **more},
  )


def test_all_modules_need_the_standard_library_only(package: Path):
  done = alone(package, IMPORT_ALL)
  assert done.returncode == 0, done.stderr
  count, foreign = done.stdout.split(maxsplit=1)
  assert int(count) > 30
  assert foreign.strip() == "['sandbox_runner']"


def test_the_command_line_works_alone(package: Path):
  run = ("run", "--backend", "bwrap", "--", "python3", "-c", "print(6 * 7)")
  done = alone(package, COMMAND_LINE, *run)
  assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_there_are_examples():
  text = "".join(EXAMPLES)
  for name in ("pool.run", "pool.lease", "session.shell", "grade_unittest", "answer_calls"):
    assert name in text


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_documentation(package: Path, example: str):
  for name in re.findall(r'image="(\w+)"', example):
    if not find_tree(describe(name)) and not os.environ.get("PTJAX_REQUIRE_DOCKER"):
      pytest.skip(f"image {name} is not built; make images")
  done = alone(package, RUN_EXAMPLE, stdin=None, input=example)
  assert done.returncode == 0, done.stderr
