"""The verdict on a module by the host's own tests."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sandbox_runner.grading.calls import MAIN, answer_order, module_name, program
from sandbox_runner.pool import Pool
from sandbox_runner.types import Limits, Outcome, Request, RequestError, Result

TEST_OUTPUT = 1 << 24
NO_PYTEST = 3
UNITTEST_DRIVER = program("plain", "stand_in", "unittest_driver")
PYTEST_DRIVER = program("plain", "stand_in", "pytest_driver")
NOTHING_KNOWN = {"calls": [], "answers": [], "certain": 0}


class Verdict(enum.StrEnum):
  passed = "pass"
  failed = "fail"


@dataclass(frozen=True)
class Grade:
  """A verdict and what it rests on.

  Attributes:
    verdict: `pass` only if `test_count` tests ran and each one passed.
    share: of `test_count` tests, or of those that ran if they are more, the part that passed.
    tests: test -> "passed", "failed", "error" (it went wrong outside of an assertion), "skipped"
      (an expected failure too), or "waiting" (for a value that never came).
    reasons: test -> the end of what its library says of it, where it did not pass.
    result: of the last process that ran the module, or that ran the tests if none did.
    detail: one line for a person, on a verdict that no single test explains.
  """

  verdict: Verdict
  share: float = 0.0
  tests: Mapping[str, str] = field(default_factory=dict)
  reasons: Mapping[str, str] = field(default_factory=dict)
  result: Result | None = None
  detail: str = ""

  @property
  def is_infra_failure(self) -> bool:
    """True if this says nothing about the module: it must never become a reward."""
    return self.result is not None and self.result.is_infra_failure


@dataclass(frozen=True)
class Tests:
  """The host's tests of one module, and how they are run.

  Attributes:
    driver: the text of the program that runs them.
    content: the file of tests.
    files: what lies beside it, and never beside the module.
    module: name of the module's file.
    count: how many tests have to be there.
    limits, tenant: of each process, that of the tests or that of the module.
    max_calls: a test may make.
  """

  driver: bytes
  content: bytes
  files: Mapping[str, bytes]
  module: str
  count: int
  limits: Limits
  tenant: str
  max_calls: int

  def __post_init__(self):
    module_name(self.module)
    clash = {MAIN, "tests.py", self.module} & set(self.files)
    if clash:
      raise RequestError(f"files holds {min(clash)!r}, which is a name of the grader's own")
    if self.max_calls < 1:
      raise ValueError(f"max_calls={self.max_calls} must be at least 1")


async def grade_unittest(
  pool: Pool,
  *,
  tests: bytes,
  module: str,
  source: bytes,
  test_count: int,
  files: Mapping[str, bytes] | None = None,
  limits: Limits | None = None,
  tenant: str = "",
  max_calls: int = 100,
) -> Grade:
  """Runs tests in the style of `unittest` on a module; see the package for what they may do.

  Args:
    pool: where all of it is run.
    tests: the text of the tests, which import the module by its name.
    module: name of the module's file, such as `solution.py`.
    source: text of the module.
    test_count: how many tests have to be there.
    files: further files for the tests, such as data; the module does not see them.
    limits: of each process, that of the tests or that of the module.
    tenant: see `Request.tenant`.
    max_calls: a test that makes more calls is left "waiting".

  Raises ValueError if the tests do not even load, or for a module's name that is not `NAME.py`.
  """
  order = Tests(
    *(UNITTEST_DRIVER, tests, files or {}, module, test_count),
    *(limits or Limits(), tenant, max_calls),
  )
  return await _grade(pool, order, source)


async def grade_pytest(
  pool: Pool,
  *,
  tests: bytes,
  module: str,
  source: bytes,
  test_count: int,
  files: Mapping[str, bytes] | None = None,
  limits: Limits | None = None,
  tenant: str = "",
  max_calls: int = 100,
) -> Grade:
  """The same for tests in the style of pytest, each parameter set counted as a test.

  Fixtures, parameters, marks, `raises` and `approx` work as ever, and so does a `conftest.py` among
  the `files`. Assertions are not rewritten, and no plugin or configuration but that is read. A
  fixture that calls the module has to be of function scope, for each test has a module of its own.

  Raises ValueError as `grade_unittest`, and if the sandbox has no pytest.
  """
  order = Tests(
    *(PYTEST_DRIVER, tests, files or {}, module, test_count),
    *(limits or Limits(), tenant, max_calls),
  )
  return await _grade(pool, order, source)


async def _grade(pool: Pool, order: Tests, source: bytes) -> Grade:
  """Runs the tests again with the answers so far, until none of them comes any further."""
  known: dict[str, dict] = {}
  tested: Result | None = None
  while True:
    ran = await _run_tests(pool, order, known)
    if ran.outcome != Outcome.exit:
      return Grade(Verdict.failed, result=ran, detail="the tests did not come to their end")
    ended = _read_report(ran)
    asking = {
      name: end
      for name, end in ended.items()
      if end["state"] == "waiting" and end["certain"] > known.get(name, NOTHING_KNOWN)["certain"]
    }
    if not asking:
      return _judge(order.count, ended, tested or ran)
    groups = [end["calls"] for end in asking.values()]
    calls = {"groups": groups, "independent": False, "memory": 0}
    answers = await answer_order(pool, order.module, source, calls, order.limits, order.tenant)
    tested = answers.result
    if tested.is_infra_failure:
      return Grade(Verdict.failed, result=tested, detail=tested.detail)
    for (name, end), outcomes in zip(asking.items(), answers.outcomes, strict=True):
      known[name] = {"calls": end["calls"], "answers": outcomes, "certain": end["certain"]}


def _judge(count: int, ended: dict[str, dict], result: Result) -> Grade:
  states = {name: end["state"] for name, end in ended.items()}
  passed = list(states.values()).count("passed")
  return Grade(
    verdict=Verdict.passed if passed == len(states) == count > 0 else Verdict.failed,
    share=passed / max(len(states), count, 1),
    tests=states,
    reasons={name: end["reason"] for name, end in ended.items() if end["reason"]},
    result=result,
    detail="" if len(states) == count else f"{len(states)} tests, not {count}",
  )


def _read_report(ran: Result) -> dict[str, dict]:
  """What the driver said. It never shares a sandbox with tested code, so it is believed."""
  said = ran.stderr.decode("utf-8", "replace").strip()[-500:]
  if ran.exit_code == NO_PYTEST:
    raise ValueError(
      f"the sandbox has no pytest ({said}): take an image that holds it, such as `code`"
    )
  if ran.exit_code:
    raise ValueError(f"the tests do not load: {said}")
  return json.loads(ran.stdout)


async def _run_tests(pool: Pool, order: Tests, known: dict[str, dict]) -> Result:
  request = Request(
    ("python3", MAIN, "tests", order.module.removesuffix(".py")),
    files={**order.files, MAIN: order.driver, "tests.py": order.content},
    stdin=json.dumps({"known": known, "max_calls": order.max_calls}).encode(),
    limits=replace(order.limits, output_bytes=max(order.limits.output_bytes, TEST_OUTPUT)),
    tenant=order.tenant,
  )
  return await pool.run(request)
