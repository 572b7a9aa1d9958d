"""Runs inside the sandbox: calls a candidate function on inputs and reports what it returned.

Usage: python3 guest_driver.py CANDIDATE_FILE FUNCTION MEMORY_BYTES, with a JSON list of argument
lists on standard input. Prints one JSON line {"test": i, "value": returned value} for each call
that returned plain data. It knows no expected value and gives no verdict: whatever a candidate
does to this process, it can at best state values, which the host compares.

Calls run in a forked child, so a call that ends its process costs that one test only; the
next child goes on after it. A child may map MEMORY_BYTES, less than the sandbox has, so that a
greedy call meets a MemoryError of its own before the sandbox meets its limit. Standard library
only.
"""

import json
import os
import resource
import sys


def is_plain(value) -> bool:
  """Whether JSON gives exactly this value back; subclasses and tuples do not count."""
  kind = type(value)
  if kind is list:
    return all(map(is_plain, value))
  if kind is dict:
    return all(type(key) is str and is_plain(item) for key, item in value.items())
  return value is None or kind in (bool, int, float, str)


def run_calls(source: str, function: str, calls: list, report) -> None:
  """Writes "loaded", then a JSON line a call: [value], or [] where it raised or is not plain."""
  namespace: dict = {"__name__": "candidate"}
  exec(compile(source, "candidate.py", "exec"), namespace)
  report.write("loaded\n")
  report.flush()
  for arguments in calls:
    try:
      value = namespace[function](*arguments)
      line = json.dumps([value] if is_plain(value) else [], allow_nan=False)
    except BaseException:  # noqa: BLE001  the candidate's exit of any kind is its own failure
      line = "[]"
    report.write(line + "\n")
    report.flush()


def child(source: str, function: str, calls: list, memory: int, write_end: int) -> None:
  """Runs the calls with standard streams closed to the candidate; never returns."""
  resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
  null = os.open(os.devnull, os.O_RDWR)
  for stream in (0, 1, 2):
    os.dup2(null, stream)
  try:
    with os.fdopen(write_end, "w") as report:
      run_calls(source, function, calls, report)
  finally:
    os._exit(0)


def main() -> None:
  path, function, memory = sys.argv[1:]
  with open(path, encoding="utf-8") as file:
    source = file.read()
  calls = json.load(sys.stdin)
  start = 0
  while start < len(calls):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
      os.close(read_end)
      child(source, function, calls[start:], int(memory), write_end)
    os.close(write_end)
    with os.fdopen(read_end, errors="replace") as lines:
      loaded = lines.readline() == "loaded\n"
      for line in lines:
        if line.startswith("[") and line != "[]\n":
          print(f'{{"test": {start}, "value": {line.strip()[1:-1]}}}', flush=True)
        start += 1
    os.waitpid(pid, 0)
    if not loaded:
      return
    start += 1  # the call during which the child ended, if calls are left


if __name__ == "__main__":
  main()
