"""Runs in the sandbox of the tests, in which no tested code ever is.

Usage: python3 unittest_driver.py TESTS MODULE, with {test: [[call, outcome], ...]} on standard
input: what the module did when this test's calls were made. A test runs until it makes a call to
which there is no answer yet. Prints {test: {"state": ..., "calls": [...]}}.
"""

import builtins
import importlib
import json
import os
import sys
import types
import unittest

from plain import decode, encode  # pyrefly: ignore[missing-import]  (lies beside it there)


class NoAnswerYet(BaseException):
  """Ends a test for now. No `except Exception` of a test catches it."""


class RaisedByModule(Exception):
  """The tested module raised what is no built-in exception."""


class Carrier:
  """Stands between a test and the module: gives the answers that are known."""

  def __init__(self, known):
    self.known = known  # [[call, outcome], ...] of the test that runs
    self.calls, self.waiting = [], False

  def call(self, name, args, kwargs):
    made = json.loads(
      json.dumps([name, [encode(a) for a in args], {k: encode(v) for k, v in kwargs.items()}])
    )
    if self.waiting or len(self.calls) == len(self.known):
      if not self.waiting:
        self.calls.append(made)
      self.waiting = True
      raise NoAnswerYet
    call, outcome = self.known[len(self.calls)]
    self.calls.append(made)
    if call != made:
      raise RaisedByModule("the test made other calls than the last time")
    return self.give(outcome)

  @staticmethod
  def give(outcome):
    if "value" in outcome:
      return decode(outcome["value"])
    kind = getattr(builtins, str(outcome.get("raised")), None)
    message = str(outcome.get("message", "no plain data came back"))
    if isinstance(kind, type) and issubclass(kind, Exception):
      try:
        error = kind(message)
      except TypeError:  # such as UnicodeDecodeError, which needs more
        error = RaisedByModule(message)
      raise error
    raise RaisedByModule(message)


class StandIn(types.ModuleType):
  """The module, as the tests see it."""

  _carrier = None

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)

    def function(*args, **kwargs):
      if self._carrier is None:
        raise RaisedByModule("a call outside of any test")
      return self._carrier.call(name, args, kwargs)

    return function


def flatten(suite):
  for item in suite:
    if isinstance(item, unittest.TestSuite):
      yield from flatten(item)
    else:
      yield item


def state(result, carrier):
  if carrier.waiting:
    return "waiting"
  if result.skipped or result.expectedFailures or result.testsRun != 1:
    return "skipped"
  return "passed" if result.wasSuccessful() else "failed"


def main():
  tests_name, module_name = sys.argv[1:]
  known = json.load(sys.stdin)
  report = os.dup(1)
  os.dup2(2, 1)  # a test may print
  stand_in = StandIn(module_name)
  sys.modules[module_name] = stand_in
  suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(tests_name))
  states = {}
  for test in flatten(suite):
    stand_in._carrier = Carrier(known.get(test.id(), []))
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    states[test.id()] = {
      "state": state(result, stand_in._carrier),
      "calls": stand_in._carrier.calls,
    }
    stand_in._carrier = None
  with open(report, "w") as f:
    json.dump(states, f)


if __name__ == "__main__":
  main()
