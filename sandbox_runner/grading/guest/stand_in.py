"""What a test meets in place of the tested module: calls go out, and plain data comes back.

The tests are run again and again, each time with the answers so far; see `Carrier`. A test goes on
past a call without an answer with an `Awaited` in place of its value, for as long as it does
nothing with it but compare, call, or read attributes, and each comparison is taken to hold. That
only guesses which calls come next, so that they are made together: what was guessed wrongly is made
anew, and in the run that says how the tests end no call lacks an answer.
"""

import builtins
import json
import os
import sys
import types

from sandbox_runner.grading.guest.plain import decode, encode

MAX_REASON = 500


class NoAnswerYet(BaseException):
  """Ends a test for now. No `except Exception` of a test catches it."""


class RaisedByModule(Exception):
  """The tested module raised what is no built-in exception, or gave no answer."""


class Carrier:
  """Stands between one test and the module.

  Attributes:
    answers: outcomes of the test's calls, as far as they are known.
    calls: those that the test has made, encoded.
    waiting: whether one of them had no answer.
    certain: how many of them follow from answers alone.
    over: whether the test is.
  """

  def __init__(self, known, max_calls):
    self.known, self.max_calls = known["calls"], max_calls
    self.answers, self.must_match = known["answers"], known["certain"]
    self.calls, self.waiting, self.certain, self.over = [], False, 0, False

  def make(self, on, name, args=None, kwargs=None):
    if self.over:
      raise RaisedByModule("an object of the module is of one test only; use function scope")
    place = len(self.calls)
    if place == self.max_calls:
      self.waiting = True
      raise NoAnswerYet
    call = self.encoded(on, name, args, kwargs)
    self.calls.append(call)
    known = place < len(self.answers) and json.dumps(call) == json.dumps(self.known[place])
    if place < self.must_match and not known:
      raise RaisedByModule("the test made other calls than the last time")
    if self.waiting or not known:
      self.certain = self.certain if self.waiting else place + 1
      self.waiting = True
      return Awaited(self, place)
    return self.give(self.answers[place], place)

  def encoded(self, on, name, args, kwargs):
    if args is None:
      return [on, name, None, None]
    try:
      return [on, name, [encode(a) for a in args], {k: encode(v) for k, v in kwargs.items()}]
    except ValueError:
      if self.waiting:
        raise NoAnswerYet from None
      raise

  def give(self, outcome, place):
    if "value" in outcome:
      try:
        return decode(outcome["value"])
      except ValueError as e:
        raise RaisedByModule(str(e)) from None
    if "object" in outcome:
      return Object(self, place)
    names = outcome.get("raised")
    if isinstance(names, list):
      raise raised(names, outcome.get("args"))
    raise RaisedByModule("no answer: the process ended, or what came back was no plain data")


def raised(names, args):
  """The first of these built-in exceptions that can be made with these arguments."""
  try:
    args = decode(args)
  except ValueError:
    args = None
  args = args if isinstance(args, list) else []
  kinds = [getattr(builtins, name, None) for name in names if isinstance(name, str)]
  for kind in kinds:
    carried = isinstance(kind, type) and issubclass(kind, (Exception, SystemExit))
    if carried and kind is not Exception:  # that says no more than RaisedByModule
      try:
        return kind(*args)
      except (TypeError, ValueError):
        continue
  return RaisedByModule(*args)


class Remote:
  """What stays with the module: can be called, and has attributes that can be read."""

  def __init__(self, carrier, place):
    self.__dict__["_carrier"], self.__dict__["_place"] = carrier, place

  def __getattr__(self, name):
    if name.startswith("__") or name in ("_carrier", "_place"):  # these if it is a copy
      raise AttributeError(name)
    return self._carrier.make(self._place, name)

  def __setattr__(self, name, value):
    raise TypeError("attributes of what the tested module holds cannot be set from a test")

  def __call__(self, *args, **kwargs):
    return self._carrier.make(self._place, None, args, kwargs)

  __hash__ = object.__hash__


class Object(Remote):
  """Known to be no plain data. Never equal to anything: it is the tested module that could say."""

  def __bool__(self):
    raise TypeError("the tested module gave an object, which is neither true nor false here")


class Awaited(Remote):
  """What has no answer yet. Whatever is asked of it, the test is run again with the answer."""

  __hash__ = None

  def _guess(self, *_):
    return True

  def _wait(self, *_):
    raise NoAnswerYet

  __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _guess
  __len__ = __iter__ = __getitem__ = __index__ = __int__ = __float__ = __str__ = __repr__ = _wait
  __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _wait
  __mod__ = __rmod__ = __neg__ = __abs__ = __round__ = __setitem__ = __enter__ = __format__ = _wait


class StandIn(types.ModuleType):
  """The module, as the tests see it: whatever is asked of it is a function."""

  _carrier = None

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)

    def function(*args, **kwargs):
      if self._carrier is None:
        raise RaisedByModule("a call outside of any test")
      return self._carrier.make(None, name, args, kwargs)

    return function


class Rounds:
  """The carriers of all tests of one run. On standard input is how far the last one came."""

  def __init__(self, module):
    order = json.load(sys.stdin)
    self._known, self._max_calls = order["known"], order["max_calls"]
    self._report = os.dup(1)
    os.dup2(2, 1)  # a test may print
    self._stand_in = sys.modules[module] = StandIn(module)
    self._ended = {}

  def begin(self, name):
    """From here on the module answers this test."""
    nothing = {"calls": [], "answers": [], "certain": 0}
    self._test = name
    self._carrier = Carrier(self._known.get(name, nothing), self._max_calls)
    self._stand_in._carrier = self._carrier

  def end(self, state, reason):
    """How the test has ended, if it does not wait."""
    carrier = self._carrier
    carrier.over, self._stand_in._carrier = True, None
    self._ended[self._test] = {
      "state": "waiting" if carrier.waiting else state,
      "reason": "" if carrier.waiting else reason[-MAX_REASON:],
      "calls": carrier.calls,
      "certain": carrier.certain,
    }

  def report(self):
    with open(self._report, "w") as f:
      json.dump(self._ended, f)
