"""Runs in the sandbox of the tested module: calls its functions and says what came of it.

On standard input is {"module": NAME, "groups": [[call, ...], ...], "independent": bool, "memory":
bytes or 0}. Prints a JSON line for each call that returned or raised. It knows no expected value
and gives no verdict: whatever a module does to this process, it can at best state values.

A call is [on, name, arguments, keyword arguments] of encoded plain data: `on` is null for the
module, or the place in its group of the call that gave the object. Without arguments (null) it
reads the attribute `name`; without a name (null) it calls the object itself.

Each group is made in a process of its own with a fresh copy of the module. If its calls are
`independent`, one that ends the process costs itself only: the next process makes the rest. A
process may map `memory` bytes, less than the sandbox has, so that a greedy call meets a MemoryError
of its own before the sandbox meets its limit.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from functools import partial
from types import ModuleType

from sandbox_runner.grading.guest.plain import decode, encode


def outcome(target, call, keep):
  """{"value": ...}, {"object": true}, or {"raised": names, "args": ...}; see `stand_in.give`."""
  _, name, args, kwargs = call
  try:
    if name is not None:
      target = getattr(target, name)
    if args is not None:
      target = target(*map(decode, args), **{key: decode(item) for key, item in kwargs.items()})
  except (Exception, SystemExit) as e:  # noqa: BLE001 - whatever it is, the module raised it
    return {"raised": builtin_names(type(e)), "args": plain_args(e)}
  keep(target)
  try:
    return {"value": encode(target)}
  except ValueError:
    return {"object": True}


def builtin_names(kind):
  """The built-in exceptions that it is, the closest first."""
  return [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]


def plain_args(error):
  """With which a built-in exception says the same."""
  own = (base for base in type(error).__mro__ if base.__module__ != "builtins")
  if any("__str__" in vars(base) for base in own):
    return [str(error)]
  try:
    return [encode(item) for item in error.args]
  except ValueError:
    return [str(error)]


def answer(order, calls, report):
  """In a process of its own: a line for each call. Returns only by ending the process."""
  if order["memory"]:
    resource.setrlimit(resource.RLIMIT_AS, (order["memory"],) * 2)
  null = os.open(os.devnull, os.O_RDWR)
  for stream in (0, 1, 2):
    os.dup2(null, stream)
  try:
    with open(report, "wb") as lines:
      module = load(order["module"])
      lines.write(b"loaded\n")
      lines.flush()
      objects = {None: module}
      for place, call in enumerate(calls):
        try:
          line = json.dumps(outcome(objects[call[0]], call, partial(objects.setdefault, place)))
        except BaseException:  # noqa: BLE001 - an end of any kind is the call's own failure
          line = "{}"
        lines.write(line.encode() + b"\n")
        lines.flush()
  finally:
    os._exit(0)


def load(name):
  """As an import would, but without a search and without a file of bytecode: that is most of it."""
  path = os.path.abspath(f"{name}.py")
  module = sys.modules[name] = ModuleType(name)
  module.__file__ = path
  with open(path, "rb") as f:
    exec(compile(f.read(), path, "exec", dont_inherit=True), module.__dict__)
  return module


def fork(order, calls, number, first):
  """Hands on what a new process answers. Returns how many calls; None if nothing was loaded."""
  read_end, write_end = os.pipe()
  pid = os.fork()
  if pid == 0:
    os.setsid()
    os.close(read_end)
    answer(order, calls, write_end)
  os.close(write_end)
  answered = None
  with open(read_end, "rb") as lines:
    if lines.readline() == b"loaded\n":
      answered = 0
      for line in lines:
        head = f'{{"group": {number}, "call": {first + answered}, "outcome": '
        sys.stdout.buffer.write(head.encode() + line.strip() + b"}\n")
        sys.stdout.flush()
        answered += 1
        if answered == len(calls):
          break
  with contextlib.suppress(ProcessLookupError):
    os.killpg(pid, signal.SIGKILL)
  os.waitpid(pid, 0)
  return answered


def main():
  order = json.load(sys.stdin)
  for number, calls in enumerate(order["groups"]):
    first = 0
    while first < len(calls):
      answered = fork(order, calls[first:], number, first)
      if answered is None or not order["independent"]:
        break
      first += answered + 1  # the call during which the process ended, if calls are left
