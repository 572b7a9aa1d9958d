"""Grades a Python module by tests that lie where the module cannot reach them.

Whoever runs tests and tested code in one process believes the tested code: it can patch the test
library, return objects that are equal to everything, print a report, or leave with status 0. Here
they never meet. The tests run in a sandbox of their own, where the module is a stand-in; a call of
it is carried to another sandbox, where the real module runs alone; and what it returned or raised
comes back as plain data. So all that tested code can do is state values, and the tests judge them.

  grade = await grade_pytest(pool, tests=TESTS, module="solution.py", source=answer, test_count=3)
  reward = grade.share  # or float(grade.verdict == Verdict.passed)

Tests may call functions of the module with plain data (None, bool, int, float, str, bytes, list,
tuple, dict, set) and look at plain data, or at what was raised: a built-in exception is raised
again under its own name and with its arguments, one derived from it as that one, any other as
`RaisedByModule`. What is no plain data stays with the module, and its methods can be called and its
attributes read; it is equal to nothing. Each test has a fresh copy of the module.

Tests are run several times, each time with the answers so far, so they have to make the same calls
each time. A test that asks for the module's constants, or for its classes by `isinstance` or
`raises`, fails.

`answer_calls` is the same without a test library: calls go in, values come out.
"""

from sandbox_runner.grading.calls import Answers, Call, answer_calls
from sandbox_runner.grading.verdict import Grade, Verdict, grade_pytest, grade_unittest

__all__ = [
  "Answers",
  "Call",
  "Grade",
  "Verdict",
  "answer_calls",
  "grade_pytest",
  "grade_unittest",
]
