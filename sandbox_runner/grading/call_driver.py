"""Runs in the sandbox of the tested module: calls its functions and says what came of it.

Usage: python3 call_driver.py, with {"module": NAME, "groups": [[call, ...], ...]} on standard
input, a call being [function, arguments, keyword arguments] of encoded plain data. Prints a JSON
line for each call that returned plain data or raised. It knows no expected value and gives no
verdict: whatever a module does to this process, it can at best state values.

Each group is made in a process of its own with a fresh copy of the module.
"""

import contextlib
import importlib
import json
import os
import signal
import sys

from plain import decode, encode  # pyrefly: ignore[missing-import]  (lies beside it there)


def outcome(module, call):
  """{"value": ...}, {"raised": NAME, "message": ...}, or {} for a value that is not plain."""
  name, args, kwargs = call
  try:
    value = getattr(module, name)(
      *map(decode, args), **{key: decode(item) for key, item in kwargs.items()}
    )
  except Exception as e:  # noqa: BLE001 - whatever it is, the module raised it
    return {"raised": type(e).__name__, "message": str(e)}
  return {"value": encode(value)}


def answer(name, calls, report):
  """In a process of its own: a line for each call. Returns only by ending the process."""
  null = os.open(os.devnull, os.O_RDWR)
  for stream in (0, 1, 2):
    os.dup2(null, stream)
  try:
    module = importlib.import_module(name)
    for call in calls:
      try:
        line = json.dumps(outcome(module, call))
      except (ValueError, RecursionError):
        line = "{}"
      os.write(report, line.encode() + b"\n")
  finally:
    os._exit(0)


def main():
  order = json.load(sys.stdin)
  for number, calls in enumerate(order["groups"]):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
      os.setsid()
      os.close(read_end)
      answer(order["module"], calls, write_end)
    os.close(write_end)
    with open(read_end, "rb") as lines:
      for place, line in zip(range(len(calls)), lines, strict=False):
        head = f'{{"group": {number}, "call": {place}, "outcome": '
        sys.stdout.buffer.write(head.encode() + line.strip() + b"}\n")
        sys.stdout.flush()
    with contextlib.suppress(ProcessLookupError):
      os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
  main()
