"""Runs in the sandbox of the tests, in which no tested code ever is. See `stand_in`.

Usage: main(TESTS, MODULE). Exits with status 1 if the tests do not load, 3 if there is no pytest.
"""

import importlib
import os
import sys

from sandbox_runner.grading.guest.stand_in import Rounds

# Assertions are not rewritten: it takes time, and it compares what differs for much longer than a
# hostile value should be able to keep a test busy. No plugin but pytest's own, and no file of its
# configuration, has a say.
OPTIONS = (
  *("-q", "--tb=no", "--show-capture=no", "--assert=plain", "--rootdir=.", "-c/dev/null"),
  *("-p", "no:cacheprovider", "-p", "no:faulthandler"),
)
NO_TESTS, LOADED = 5, (0, 1)


class Recorder:
  """A plugin that begins and ends the tests."""

  def __init__(self, rounds):
    self.rounds, self.reports, self.not_loaded = rounds, [], []

  def pytest_collectreport(self, report):
    if report.failed:
      self.not_loaded.append(str(report.longrepr))

  def pytest_runtest_logstart(self, nodeid):
    self.reports = []
    self.rounds.begin(nodeid.partition("::")[2])

  def pytest_runtest_logreport(self, report):
    self.reports.append(report)

  def pytest_runtest_logfinish(self):
    self.rounds.end(*ending(self.reports))


def ending(reports):
  """(state, reason) by the reports of a test's set-up, call and end."""
  for report in reports:
    if report.failed:
      crash = getattr(report.longrepr, "reprcrash", None)
      reason = f"line {crash.lineno}: {crash.message}" if crash else str(report.longrepr)
      return "failed" if report.when == "call" else "error", reason
  for report in reports:
    if report.skipped:  # an expected failure too: it proves nothing
      return "skipped", str(getattr(report, "wasxfail", report.longrepr))
  return "passed", ""


def main(tests, module):
  os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
  try:
    pytest = importlib.import_module("pytest")
  except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(3)
  rounds = Rounds(module)
  recorder = Recorder(rounds)
  status = pytest.main([*OPTIONS, f"{tests}.py"], plugins=[recorder])
  if recorder.not_loaded or status not in (*LOADED, NO_TESTS):
    print(*(recorder.not_loaded or [f"pytest ended with status {status}"]), file=sys.stderr)
    sys.exit(1)
  rounds.report()
