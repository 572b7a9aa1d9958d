"""The verdict on a module by the host's own tests."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sandbox_runner.grading.calls import HERE, PLAIN, answer_encoded, module_name
from sandbox_runner.pool import Pool
from sandbox_runner.types import Limits, Outcome, Request, Result

UNITTEST_DRIVER = (HERE / "unittest_driver.py").read_bytes()
TEST_OUTPUT = 1 << 24


class Verdict(enum.StrEnum):
  passed = "pass"
  failed = "fail"


@dataclass(frozen=True)
class Grade:
  """A verdict and what it rests on.

  Attributes:
    verdict: `pass` only if `test_count` tests ran and each one passed.
    tests: test -> "passed", "failed", "skipped", or "waiting" (for a value that never came).
    result: of the last process that ran the module, or that ran the tests if none did.
    detail: one line for a person, on a verdict that no single test explains.
  """

  verdict: Verdict
  tests: Mapping[str, str] = field(default_factory=dict)
  result: Result | None = None
  detail: str = ""

  @property
  def is_infra_failure(self) -> bool:
    """True if this says nothing about the module: it must never become a reward."""
    return self.result is not None and self.result.is_infra_failure


async def grade_unittest(
  pool: Pool,
  *,
  tests: bytes,
  module: str,
  source: bytes,
  test_count: int,
  limits: Limits | None = None,
  tenant: str = "",
  max_calls: int = 100,
) -> Grade:
  """Runs the tests on the module; see the package for what they may do with it.

  Tests are run again for each call that one of them makes after another, each time with the answers
  so far, so they have to make the same calls each time, and one that makes more than `max_calls` is
  left "waiting". All tests are run together, so what counts is the longest.

  Raises ValueError if the tests do not even load, or for a module's name that is not `NAME.py`.
  """
  limits = limits or Limits()
  name = module_name(module)
  known: dict[str, list] = {}
  tested: Result | None = None
  while True:
    ran = await _run_tests(pool, tests, name, known, limits, tenant)
    if ran.outcome != Outcome.exit:
      return Grade(Verdict.failed, {}, ran, "the tests did not come to their end")
    if ran.exit_code:
      raise ValueError(f"the tests do not load: {ran.stderr.decode('utf-8', 'replace')[-300:]}")
    ended = json.loads(ran.stdout)
    states = {test: end["state"] for test, end in ended.items()}
    groups = {t: e["calls"] for t, e in ended.items() if states[t] == "waiting"}
    if not groups or max(map(len, groups.values())) > max_calls:
      break
    answers = await answer_encoded(pool, module, source, list(groups.values()), limits, tenant)
    tested = answers.result
    if tested.is_infra_failure:
      return Grade(Verdict.failed, {}, tested, tested.detail)
    for (test, calls), outcomes in zip(groups.items(), answers.outcomes, strict=True):
      known[test] = list(zip(calls, outcomes, strict=True))
  proven = len(states) == test_count and set(states.values()) == {"passed"}
  detail = "" if len(states) == test_count else f"{len(states)} tests, not {test_count}"
  return Grade(Verdict.passed if proven else Verdict.failed, states, tested or ran, detail)


async def _run_tests(
  pool: Pool, tests: bytes, module: str, known: dict, limits: Limits, tenant: str
) -> Result:
  request = Request(
    ("python3", "unittest_driver.py", "tests", module),
    files={"unittest_driver.py": UNITTEST_DRIVER, "plain.py": PLAIN, "tests.py": tests},
    stdin=json.dumps(known).encode(),
    limits=replace(limits, output_bytes=max(limits.output_bytes, TEST_OUTPUT)),
    tenant=tenant,
  )
  return await pool.run(request)
