"""Tests in the style of pytest: what they can do, and that tested code cannot touch the verdict."""

import asyncio

import hostile_cases
import pytest
from pytest_files import pytest_files
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, RequestError
from sandbox_runner.grading import Grade, Verdict, grade_pytest

FILES = pytest_files()


def grade(driver: Driver, tests: str, source: str, count: int = 1, **fields) -> Grade:
  return driver.run(grading(driver, tests, source, count, **fields))


def grading(driver: Driver, tests: str, source: str, count: int, files=FILES, **fields):
  return grade_pytest(
    driver.pool,
    tests=tests.encode(),
    module="solution.py",
    source=source.encode(),
    test_count=count,
    files=files,
    **fields,
  )


TESTS = """
import pytest, solution
from solution import add

@pytest.fixture
def two():
  yield 2
  assert add(0, 0) == 0

@pytest.mark.parametrize("x", [1, pytest.param(-3, id="minus")])
def test_add(x, two):
  assert add(x, two) == x + 2

class TestMore:
  def test_approx(self):
    assert add(0.1, 0.2) == pytest.approx(0.3)
    assert [add(0.1, 0.2), 1] == pytest.approx([0.3, 1])

  def test_raises(self, capsys):
    print("a test may print")
    with pytest.raises(ValueError, match="^bad$") as raised:
      solution.fail()
    assert raised.value.args == ("bad",)
    with pytest.raises(KeyError, match="^'k'$"):
      solution.look("k")
    assert capsys.readouterr().out == "a test may print\\n"

def test_object():
  stack = solution.Stack()
  stack.push(1)
  stack.push({"a": (2,)})
  assert stack.pop() == {"a": (2,)}
  assert stack.items == [1]

@pytest.mark.xfail
def test_expected(): assert add(1, 1) == 3

def test_skips(tmp_path):
  (tmp_path / "f").write_text("x")
  if add(1, 1) == 2: pytest.skip("why not")

def test_wrong(data):
  assert add(1, 1) == data

def test_no_fixture(absent): pass

def test_after(broken): pass
"""
SOURCE = """
class Bad(ValueError): pass
class Stack:
  def __init__(self): self.items = []
  def push(self, x): self.items.append(x)
  def pop(self): return self.items.pop()
def add(x, y): return x + y
def fail(): raise Bad("bad")
def look(k): return {}[k]
"""
CONFTEST = b"""
import pytest, solution
@pytest.fixture
def data(): return 3
@pytest.fixture
def broken():
  yield
  assert solution.add(1, 1) == 3
"""


def test_what_pytest_can_do(driver: Driver):
  graded = grade(driver, TESTS, SOURCE, 10, files={**FILES, "conftest.py": CONFTEST})
  assert graded.tests == {
    "test_add[1]": "passed",
    "test_add[minus]": "passed",
    "TestMore::test_approx": "passed",
    "TestMore::test_raises": "passed",
    "test_object": "passed",
    "test_expected": "skipped",
    "test_skips": "skipped",
    "test_wrong": "failed",
    "test_no_fixture": "error",
    "test_after": "error",
  }, graded
  assert (graded.verdict, graded.share, graded.detail) == (Verdict.failed, 0.5, "")
  line = TESTS.partition("== data")[0].count("\n") + 1
  assert graded.reasons["test_wrong"] == f"line {line}: AssertionError"
  assert "'absent' not found" in graded.reasons["test_no_fixture"]
  assert "why not" in graded.reasons["test_skips"]


def test_all_passed_is_a_pass(driver: Driver):
  graded = grade(
    driver, "import solution\ndef test(): assert solution.f(1) == 2", "f = (1).__add__"
  )
  assert (graded.verdict, graded.share, graded.result.outcome) == ("pass", 1.0, Outcome.exit)


def test_objects_do_not_outlive_their_test(driver: Driver):
  """Kept by a fixture of wider scope, they would let a test pass by what is only guessed."""
  tests = (
    "import pytest, solution\n"
    "@pytest.fixture(scope='module')\n"
    "def number(): return solution.f()\n"
    "@pytest.fixture(scope='module')\n"
    "def thing(): return solution.g()\n"
    "def test_1(number): assert number == 1\n"
    "def test_2(number): assert number == 1\n"
    "def test_3(thing): assert thing.x == 1\n"
    "def test_4(thing): assert thing.x == 1\n"
  )
  source = "class T: x = 1\ndef f(): return 1\ndef g(): return T()"
  graded = grade(driver, tests, source, 4)
  assert [*graded.tests.values()] == ["passed", "passed", "passed", "failed"], graded
  graded = grade(driver, tests, "", 4)
  assert [*graded.tests.values()] == ["error"] * 4


@pytest.mark.parametrize(
  ("tests", "said"),
  [
    ("def test(: pass", "do not load.*SyntaxError"),
    ("import solution\nX = solution.f()", "do not load.*outside of any test"),
    ("import pytest\ndef test(): pytest.exit('no')", "ended with status 2"),
  ],
)
def test_broken_tests_are_the_callers_error(driver: Driver, tests: str, said: str):
  with pytest.raises(ValueError, match=f"(?s){said}"):
    grade(driver, tests, "def f(): return 1")


def test_bad_input(driver: Driver):
  with pytest.raises(RequestError, match=r"'solution\.py', which is a name of the grader's own"):
    grade(driver, "", "", files={"solution.py": b""})
  with pytest.raises(ValueError, match="max_calls=0"):
    grade(driver, "", "", max_calls=0)
  with pytest.raises(ValueError, match=r"the sandbox has no pytest .* such as `code`"):
    grade(driver, "", "", files={"pytest.py": b"import absent"})
  assert grade(driver, "", "").detail == "0 tests, not 1"


# Each is run against tests that any of these would pass if it could reach them.
ATTACKS = {
  "conftest": "open('conftest.py', 'w').write('raise SystemExit(0)')\ndef add(x, y): return 0",
  "sitecustomize": """
import os, sys
for name in ("sitecustomize.py", "usercustomize.py", "pytest.py", "grade.py", "tests.py", "x.pth"):
  for d in (".", *sys.path):
    try: open(os.path.join(d, name), "w").write("import os; print('{}'); os._exit(0)")
    except OSError: pass
def add(x, y): return 0""",
  "plugin": """
import os, sys, types
os.environ["PYTEST_PLUGINS"] = "evil"; os.environ["PYTEST_ADDOPTS"] = "--collect-only"
sys.modules["evil"] = types.ModuleType("evil")
open("pytest.ini", "w").write("[pytest]\\naddopts = --collect-only")
def add(x, y): return 0""",
  "os._exit": "import os\nos._exit(0)",
  "sys.exit": "import sys\nsys.exit(0)",
  "exit in a call": "import os\ndef add(x, y): os._exit(0)",
  "raise SystemExit": "def add(x, y): raise SystemExit(0)",
  "builtins": """
import builtins
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
builtins.AssertionError = ValueError = builtins.Exception
def add(x, y): return None""",
  "patched pytest": """
try:
  import pytest, _pytest.runner
  _pytest.runner.CallInfo.from_call = classmethod(lambda *a, **k: None)
except ImportError: pass
import unittest, sys
unittest.TestCase.run = lambda *a: None
sys.modules["pytest"] = sys.modules["_pytest"] = sys
def add(x, y): return None""",
  "patched json": """
import json
json.dumps = lambda *a, **k: '{"value": {"tests": "passed"}}'
def add(x, y): return 0""",
  "always equal": """
class Any:
  def __eq__(self, other): return True
  __ne__ = __lt__ = __gt__ = __bool__ = __contains__ = __eq__
  def __getattr__(self, name): return Any()
  def __call__(self, *a, **k): return Any()
def __getattr__(name): return lambda *a: Any()""",
  "subclass of int": """
class Int(int):
  def __eq__(self, other): return True
  __hash__ = int.__hash__
def add(x, y): return Int(0)""",
  "class tricks": """
class Fake:
  __class__ = int
  def __eq__(self, other): return True
  def __reduce__(self): return (exec, ("import os; os._exit(0)",))
def add(x, y): return Fake()""",
  "metaclass": """
class Meta(type):
  __name__ = property(lambda cls: 1 / 0)
  __mro__ = property(lambda cls: [int])
  def __instancecheck__(cls, x): return True
class E(Exception, metaclass=Meta):
  args = property(lambda self: 1 / 0)
  def __str__(self): raise SystemExit(0)
def add(x, y): raise E""",
  "poses as the test library": """
class Skipped(BaseException): pass
class Exit(Exception): pass
Skipped.__module__ = Exit.__module__ = "_pytest.outcomes"
def add(x, y): raise (Skipped if x > 0 else Exit)("skip")""",
  "poses as built-in": """
class E(Exception): pass
E.__module__, E.__name__ = "builtins", "SystemExit"
def add(x, y): raise E(0)""",
  "reads the stack": """
import gc, inspect, sys
def add(x, y):
  seen = [repr(f.frame.f_locals) for f in inspect.stack()]
  seen += [repr(o) for o in gc.get_objects() if type(o) in (dict, list)][:1000]
  return 10**20 + 1 if any(str(10**20 + 1) in text for text in seen) else 0""",
  "reads files": """
import glob, os
def add(x, y):
  for path in glob.glob("/work/**", recursive=True) + glob.glob("/proc/[0-9]*/environ"):
    try:
      if b"def " + b"test_small" in open(path, "rb").read(): return 5
    except OSError: pass""",
  "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(x, y): return 0",
  "threads": """
import threading, time, os
def forge():
  while True:
    for fd in range(64):
      try: os.write(fd, b'{"group": 0, "call": 0, "outcome": {"value": 5}}\\\\n')
      except OSError: pass
    time.sleep(0.001)
threading.Thread(target=forge).start()
def add(x, y): return 0""",
  "child that goes on": """
import os, time
if os.fork() == 0:
  os.setsid()
  for _ in range(100):
    for pid in os.listdir("/proc"):
      try: open(f"/proc/{pid}/fd/1", "w").write('{"tests.py": {"state": "passed"}}')
      except OSError: pass
    time.sleep(0.01)
  os._exit(0)
def add(x, y): return 0""",
  "printed report": """
import os
for stream in (1, 2):
  os.write(stream, b"3 passed in 0.01s\\\\n" + b'{"test_small": {"state": "passed", "calls": []}}')
os._exit(0)""",
  "huge output": "def add(x, y): return 'x' * (1 << 24)",
  "huge list": "def add(x, y): return list(range(10**6))",
  "huge int": "def add(x, y): return 1 << 3_000_000",
  "huge exception": "def add(x, y): raise ValueError('x' * (1 << 22))",
  "deep": "def add(x, y):\n  a = []\n  for _ in range(10**5): a = [a]\n  return a",
  "circle": "def add(x, y):\n  a = []\n  a.append(a)\n  return a",
  "recursion": "def add(x, y): return add(x, y)",
  "pickle": "import pickle\ndef add(x, y): return pickle.dumps(print)",
  "nan": "def add(x, y): return float('nan')",
  "inf": "def add(x, y): return float('inf')",
  "bool": "def add(x, y): return True",
  "odd keys": "def add(x, y): return {None: 1, (1, 2): 2, 'value': 5, float('nan'): 3, b'': 4}",
  "colliding keys": "def add(x, y): return {i * (2**61 - 1): 0 for i in range(1, 3000)}",
}
THREE = """
import solution
def test_small(): assert solution.add(2, 3) == 5
def test_negative(): assert solution.add(-7, 4) == -3
def test_large(): assert solution.add(10**20, 1) == 10**20 + 1
"""
ATTACK_LIMITS = Limits(wall_s=5, cpu_s=5)


def test_attacks_earn_nothing(driver: Driver):
  async def all_grades():
    return await asyncio.gather(
      *(grading(driver, THREE, source, 3, limits=ATTACK_LIMITS) for source in ATTACKS.values())
    )

  grades = dict(zip(ATTACKS, driver.run(all_grades()), strict=True))
  assert {name: g.share for name, g in grades.items()} == dict.fromkeys(ATTACKS, 0.0)
  assert {g.verdict for g in grades.values()} == {Verdict.failed}
  assert not [name for name, g in grades.items() if g.is_infra_failure]


def test_hostile_cases_in_this_style(driver: Driver):
  """The same programs as in the suite's cases, whose tests are in the style of unittest."""
  cases = {name: case for name, case in hostile_cases.load().items() if case.get("grade")}
  style = {"style": "pytest", "tests": THREE}

  async def all_grades():
    run = (
      hostile_cases.graded(driver.pool, {**case, "grade": {**case["grade"], **style}})
      for case in cases.values()
    )
    return await asyncio.gather(*run)

  grades = dict(zip(cases, driver.run(all_grades()), strict=True))
  wanted = {name: case["expect"]["verdict"] for name, case in cases.items()}
  assert {name: str(g.verdict) for name, g in grades.items()} == wanted
  assert set(wanted.values()) == {"pass", "fail"}
