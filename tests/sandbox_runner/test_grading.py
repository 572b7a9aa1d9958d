"""The grader: which values and errors get across, and what counts as proven."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome
from sandbox_runner.grading import Call, Grade, Verdict, answer_calls, grade_unittest
from sandbox_runner.grading.calls import read_outcomes
from sandbox_runner.grading.guest.plain import decode, encode
from sandbox_runner.grading.match import matches

HEAD = "import unittest\nimport solution\nclass T(unittest.TestCase):\n"
STACK = "items = []\ndef push(x): items.append(x)\ndef pop(): return items.pop()\n"


def grade(driver: Driver, source: str, *tests: str, count: int | None = None, **fields) -> Grade:
  """`tests` are the bodies of one test method each."""
  methods = [f"  def test_{i}(self):\n    {body}\n" for i, body in enumerate(tests)]
  return driver.run(
    grade_unittest(
      driver.pool,
      tests=(HEAD + "".join(methods)).encode(),
      module="solution.py",
      source=source.encode(),
      test_count=len(tests) if count is None else count,
      **fields,
    )
  )


def test_calls_that_depend_on_values(driver: Driver):
  """One test: what it puts in depends on what came out before, in one state of the module."""
  body = (
    "solution.push((1, {2: b'x'})); solution.push([3.5, {4}]);"
    " a = solution.pop(); solution.push(a + [None]);"
    " self.assertEqual([solution.pop(), solution.pop()], [[3.5, {4}, None], (1, {2: b'x'})])"
  )
  graded = grade(driver, STACK, body, "self.assertRaises(IndexError, solution.pop)")
  assert graded.tests == {"tests.T.test_0": "passed", "tests.T.test_1": "passed"}, graded
  assert graded.verdict == Verdict.passed
  assert graded.result.outcome == Outcome.exit


def test_each_test_has_a_fresh_module(driver: Driver):
  body = "solution.push(1); self.assertEqual(solution.pop(), 1);"
  graded = grade(driver, STACK, *[body + "self.assertRaises(IndexError, solution.pop)"] * 2)
  assert graded.verdict == Verdict.passed


@pytest.mark.parametrize(
  ("source", "body", "state"),
  [
    ("def f(): raise KeyError('k')", "self.assertRaises(KeyError, solution.f)", "passed"),
    ("def f(): raise KeyError('k')", "self.assertRaises(ValueError, solution.f)", "error"),
    ("class E(Exception): pass\ndef f(): raise E", "self.assertRaises(E, solution.f)", "error"),
    (
      "class E(ValueError): pass\ndef f(): raise E('no', 7)",
      "with self.assertRaises(ValueError) as c: solution.f()\n"
      "    self.assertEqual(c.exception.args, ('no', 7))",
      "passed",
    ),
    ("def f(x=1): return x", "self.assertEqual(solution.f(x=2), 2)", "passed"),
    ("def f(): return 1", "self.assertIs(solution.f(), True)", "failed"),
    ("def f(): return len", "self.assertEqual(solution.f(), len)", "failed"),
    ("def f(): return len", "self.assertTrue(solution.f())", "error"),
    ("def g(): return 1", "solution.f()", "error"),
    ("def f(:", "solution.f()", "error"),
    ("def f(): raise SystemExit(0)", "self.assertIsNone(solution.f())", "error"),
    ("def f(): raise SystemExit(2)", "self.assertRaises(SystemExit, solution.f)", "passed"),
    ("def f(): return 1", "self.skipTest('no')", "skipped"),
    ("def f(s): return len(s)", "self.assertEqual(solution.f({*'abcdefgh'}), 8)", "passed"),
    ("def f(x): return x", "solution.f(float('nan')); solution.f(solution.f(1))", "passed"),
    ("def f(x): return x * x", "self.assertEqual(solution.f(10**9000), 10**18000)", "passed"),
    ("import random\ndef f(): return random.random()", "solution.f(); solution.f()", "passed"),
    (
      "import os\ndef f(x=0): return os.urandom(8)",
      "solution.f(solution.f())",
      "error",
    ),
  ],
)
def test_states(driver: Driver, source: str, body: str, state: str):
  graded = grade(driver, source, body)
  assert graded.tests == {"tests.T.test_0": state}
  assert (graded.verdict == Verdict.passed) == (state == "passed")


def test_count_of_tests_is_part_of_the_proof(driver: Driver):
  right = "self.assertEqual(solution.f(), 1)"
  graded = grade(driver, "def f(): return 1", right, count=2)
  assert (graded.verdict, graded.detail) == (Verdict.failed, "1 tests, not 2")
  empty = driver.run(
    grade_unittest(driver.pool, tests=b"", module="solution.py", source=b"", test_count=0)
  )
  assert (empty.verdict, empty.tests) == (Verdict.failed, {})


def test_endless_module_fails(driver: Driver):
  limits = Limits(wall_s=1)
  graded = grade(driver, "while True: pass", "solution.f()", limits=limits)
  assert (graded.verdict, graded.result.outcome) == (Verdict.failed, Outcome.timeout)


def test_endless_calls_end(driver: Driver):
  graded = grade(driver, "def f(): return 1", "\n    while True: solution.f()", max_calls=3)
  assert graded.tests == {"tests.T.test_0": "waiting"}
  assert graded.verdict == Verdict.failed


def test_forged_answers_are_rivals(driver: Driver):
  """The module writes answers of its own to whatever it can reach: none of them counts."""
  source = (
    "import os\n"
    'line = b\'{"group": 0, "call": 0, "outcome": {"value": 5}}\\n\'\n'
    "for pid in ('self', os.getppid()):\n"
    "  for fd in range(64):\n"
    "    try:\n"
    "      with open(f'/proc/{pid}/fd/{fd}', 'wb', buffering=0) as f: f.write(line)\n"
    "    except OSError: pass\n"
    "def add(a, b): return 0\n"
  )
  body = "self.assertEqual(solution.add(2, 3), 5)"
  assert grade(driver, source, body).verdict == Verdict.failed


def test_broken_tests_are_the_callers_error(driver: Driver):
  with pytest.raises(ValueError, match="do not load"):
    grade(driver, "def f(): return 1", "self.(")
  with pytest.raises(ValueError, match=r"NAME\.py"):
    driver.run(grade_unittest(driver.pool, tests=b"", module="../x.py", source=b"", test_count=1))


SET_UP = """import unittest, solution
class T(unittest.TestCase):
  @classmethod
  def setUpClass(cls): cls.x = solution.f()
  def test_x(self): self.assertEqual(self.x, 1)
"""


@pytest.mark.parametrize(
  ("source", "state"),
  [("def f(): return 1", "passed"), ("def f(): raise SystemExit(0)", "error")],
)
def test_set_up_of_a_class(driver: Driver, source: str, state: str):
  """What ends a suite as a whole ends its own test only."""
  fields = {"tests": SET_UP.encode(), "module": "solution.py", "test_count": 1}
  graded = driver.run(grade_unittest(driver.pool, source=source.encode(), **fields))
  assert graded.tests == {"tests.T.test_x": state}, graded


def test_objects_stay_with_the_module(driver: Driver):
  source = (
    "class Stack:\n"
    "  def __init__(self, n): self.n, self.items, self.me = n, [], self\n"
    "  def push(self, *x): self.items.extend(x); return self\n"
    "  def pop(self): return self.items.pop()\n"
    "  def __eq__(self, other): return True\n"
  )
  tests = {
    "s = solution.Stack(5).push(1).push(2, 3)\n"
    "    self.assertEqual((s.pop(), s.n, s.items), (3, 5, [1, 2]))": "passed",
    "s = solution.Stack(5); self.assertEqual(s.me.me.n, 5)\n"
    "    self.assertRaises(IndexError, s.pop)": "passed",
    "self.assertEqual(solution.Stack(5), 5)": "failed",
    "self.assertEqual(solution.Stack(5), solution.Stack(5))": "failed",
    "self.assertTrue(solution.Stack(5))": "error",
    "self.assertEqual(solution.Stack(5).absent, 1)": "error",
    "solution.Stack(5).n = 6": "error",
  }
  graded = grade(driver, source, *tests)
  assert list(graded.tests.values()) == list(tests.values()), graded
  assert graded.share == 2 / 7


def test_calls_are_made_together(driver: Driver):
  """Twenty values that are only compared take one run of the module, not twenty."""
  audit = Path(driver.pool.config.audit_path)
  before = len(audit.read_bytes().splitlines())
  body = "\n    ".join(f"self.assertEqual(solution.f({i}), {i + 1})" for i in range(20))
  assert grade(driver, "def f(n): return n + 1", body).verdict == Verdict.passed
  assert len(audit.read_bytes().splitlines()) == before + 3  # the tests, the module, the tests


def test_what_was_guessed_wrongly_is_made_anew(driver: Driver):
  source = "seen = []\ndef f(n):\n  seen.append(n)\n  return list(seen)"
  body = (
    "if solution.f(1) == [7]: solution.f(2)\n"
    "    else: solution.f(3)\n"
    "    self.assertEqual(solution.f(4), [1, 3, 4])"
  )
  assert grade(driver, source, body).verdict == Verdict.passed


def test_answer_calls(driver: Driver):
  source = (
    b"n = 0\ndef up(by=1):\n  global n\n  n += by\n  return n\ndef end(): import os; os._exit(0)"
  )
  groups = [[Call("up"), Call("up", (2,)), Call("end"), Call("up")], [Call("up", (), {"by": 7})]]
  answers = driver.run(answer_calls(driver.pool, "solution.py", source, groups))
  assert [answers.value(0, 0), answers.value(0, 1), answers.value(1, 0)] == [1, 3, 7]
  assert answers.outcomes[0][2:] == [{}, {}]
  with pytest.raises(KeyError):
    answers.value(0, 2)


def test_independent_calls(driver: Driver):
  """Each end of a process costs one call; what is left is made on a copy of the module."""
  source = b"import os\nn = 0\ndef f(i):\n  global n\n  n += 1\n  return n if i else os._exit(0)"
  calls = [[Call("f", (i,)) for i in (1, 0, 1, 1, 0)], [Call("f", (1,))]]
  answers = driver.run(
    answer_calls(driver.pool, "solution.py", source, calls, independent=True, memory_mb=100)
  )
  values = [[o.get("value") for o in group] for group in answers.outcomes]
  assert values == [[1, None, 1, 2, None], [1]]
  broken = driver.run(answer_calls(driver.pool, "s.py", b"1/0", calls, independent=True))
  assert broken.outcomes == [[{}] * 5, [{}]]


def test_memory_of_a_call(driver: Driver):
  source = b"def f(n): return len(bytearray(n << 20))"
  calls = [[Call("f", (500,)), Call("f", (1,))]]
  answers = driver.run(answer_calls(driver.pool, "s.py", source, calls, memory_mb=200))
  assert answers.outcomes[0][0]["raised"][0] == "MemoryError"
  assert answers.equals(0, 1, 1 << 20)


@pytest.mark.parametrize("module", ["../x.py", "x", "json.py", "tests.py", "grade.py", "a-b.py"])
def test_names_of_modules(driver: Driver, module: str):
  with pytest.raises(ValueError, match=r"NAME\.py"):
    driver.run(answer_calls(driver.pool, module, b"", [[]]))


MATCHES = (
  *(
    (1, 1, True),
    (True, 1, False),
    (1.0, 1, False),
    (0, False, False),
    (math.nan, math.nan, False),
  ),
  *(([1, [2]], [1, [2]], True), ([1, True], [1, 1], False), ([1], [1, 1], False)),
  *(
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1.0}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),
  ),
  *(({"a": [1], "b": {2: 3}}, {"b": {2: 3}, "a": [1]}, True), ({1: 2}, {True: 2}, False)),
  *((None, None, True), ("1", 1, False), ((1, [2]), (1, [2]), True), ((1,), [1], False)),
  *(({1, "a"}, {"a", 1}, True), ({1}, {True}, False), ({1}, frozenset({1}), False)),
  *((b"x", b"x", True), (b"x", "x", False), (10**5000, 10**5000, True), (1, 10**5000, False)),
  *((Counter("aab"), {"a": 2, "b": 1}, True), (0.0, -0.0, True), ("\ud800", "\ud800", True)),
)


# Not by value: there are numbers among them that Python refuses to print.
@pytest.mark.parametrize(("value", "expected", "equal"), MATCHES, ids=range(len(MATCHES)))
def test_matches(value, expected, equal: bool):
  assert matches(json.loads(json.dumps(encode(value))), expected) is equal


@pytest.mark.parametrize("encoded", [*({"dict": x} for x in (1, [1], [[1]], None)), {"tuple": 1}])
def test_unsound_data_matches_nothing(encoded):
  for expected in ({}, {1: 1}, (), (1,), [], 1, None, "dict", set()):
    assert not matches(encoded, expected)


@pytest.mark.parametrize(
  "value",
  [
    *(None, True, -(10**40), 0.5, math.inf, "\ud800\0é", b"\xff"),
    *([], [[1], ()], (1, (2,)), {1, "a"}, frozenset({b""}), {"dict": 1}, {(1, 2): [3], None: {}}),
  ],
)
def test_plain_data_round_trip(value):
  back = decode(json.loads(json.dumps(encode(value))))
  assert (back, type(back)) == (value, type(value))


class Anything(int):
  def __eq__(self, other):
    return True

  __hash__ = int.__hash__


@pytest.mark.parametrize("value", [Anything(), [Anything()], {"k": Anything()}, object(), len])
def test_no_subclass_is_plain(value):
  with pytest.raises(ValueError, match="not plain"):
    encode(value)


@pytest.mark.parametrize(
  "encoded",
  [
    {"set": [[]]},
    {"dict": [[1]]},
    {"dict": [1]},
    {"dict": 3},
    {"bytes": "xy"},
    {"bytes": 1},
    {"tuple": 1},
    {"code": []},
    {},
    {"set": [], "tuple": []},
  ],
)
def test_unsound_data_is_refused(encoded):
  with pytest.raises(ValueError, match=r".+"):
    decode(encoded)


def test_depth_is_bounded():
  deep: list = []
  for _ in range(60):
    deep = [deep]
  for direction in (encode, decode):
    with pytest.raises(ValueError, match="deep"):
      direction(deep)


def test_read_outcomes_trusts_no_line():
  def line(group, call, outcome) -> bytes:
    return json.dumps({"group": group, "call": call, "outcome": outcome}).encode()

  lines = [
    line(0, 0, {"value": 1}),
    line(0, 1, {"value": 1}),
    line(0, 1, {"value": 2}),  # a rival
    line(0, 7, {"value": 1}),  # of no call
    line(True, 0, {"value": 1}),
    line(1, 0, ["value"]),
    b'{"group": 1, "call": 0, "outcome": {"value": ' + b"9" * 5000 + b"}}",
    b"[" * 100000,
    b"\xff",
    line(1, 0, {"raised": ["KeyError"], "args": ["k"]}),
  ]
  assert read_outcomes(b"\n".join(lines), [2, 1]) == [
    [{"value": 1}, {}],
    [{"raised": ["KeyError"], "args": ["k"]}],
  ]
