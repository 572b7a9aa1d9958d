"""The cases of tests/hostile as requests, and their expectations as checks."""

import base64
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from pytest_files import pytest_files

from sandbox_runner import Limits, Outcome, Pool, Request, Result
from sandbox_runner.grading import Grade, grade_pytest, grade_unittest

DIRECTORY = Path(__file__).parent.parent / "hostile"
# How many times slower than a real machine this kernel is: what an emulated one sets.
SLOWNESS = int(os.environ.get("HOSTILE_SLOWNESS", "1"))
MAIN = {"python": ("python3", "main.py"), "bash": ("bash", "main.sh")}


def load() -> dict[str, dict]:
  """Case id -> case, over all groups."""
  found = {}
  for path in sorted(DIRECTORY.glob("*.json")):
    if path.name != "schema.json":
      document = json.loads(path.read_text())
      cases = (on_slow_kernel(c, SLOWNESS) for c in document["cases"])
      found.update({c["id"]: {**c, "group": document["group"]} for c in cases})
  return found


def on_slow_kernel(case: dict, slowness: int) -> dict:
  """The case with more time, unless its clock may end it."""
  outcome, limits = case["expect"].get("outcome") or (), case["limits"]
  if "timeout" in outcome:
    return case
  times = {name: slowness * limits[name] for name in ("wall_s", "cpu_s")}
  expect = {**case["expect"], "within_s": slowness * case["expect"]["within_s"]}
  return {**case, "limits": {**limits, **times}, "expect": expect}


def variants(case: dict) -> Iterator[tuple[str, dict]]:
  """(id, case) of each variant, its expectation laid over the case's."""
  for i, variant in enumerate(case.get("variants") or [{}]):
    expect = {**case["expect"], **variant.get("expect", {})}
    suffix = f"[{i}]" if case.get("variants") else ""
    yield case["id"] + suffix, {**case, **variant, "expect": expect}


def content(value: str | dict | None) -> bytes:
  if value is None:
    return b""
  if isinstance(value, str):
    return value.encode("utf-8", "surrogateescape")
  if "base64" in value:
    return base64.b64decode(value["base64"])
  text = value["repeat"].encode()
  return (text * (value["bytes"] // len(text) + 1))[: value["bytes"]]


def request(run: dict, limits: dict, names: dict[str, str]) -> Request:
  """The request of one run; `names` are the placeholders."""

  def fill(data: bytes) -> bytes:
    for name, value in names.items():
      data = data.replace(f"@{name}@".encode(), value.encode())
    return data

  main = MAIN[run["language"]]
  files = {name: fill(content(value)) for name, value in (run.get("files") or {}).items()}
  files[main[1]] = fill(content(run.get("program")))
  args = [fill(content(a)).decode("utf-8", "surrogateescape") for a in run.get("args") or ()]
  chosen = {k: v for k, v in limits.items() if k != "network"}
  return Request(
    (*main, *args),
    files,
    content(run.get("stdin")),
    limits=Limits(**chosen),
    copy_out=tuple(run.get("copy_out") or ()),
  )


async def graded(pool: Pool, case: dict) -> Grade:
  """The grade of the case's program by the case's tests."""
  grade = case["grade"]
  styles = {"unittest": (grade_unittest, {}), "pytest": (grade_pytest, pytest_files())}
  grader, files = styles[grade["style"]]
  return await grader(
    pool,
    files=files,
    tests=grade["tests"].encode(),
    module=grade["module"],
    source=content(case["program"]),
    test_count=grade["test_count"],
    limits=Limits(**{k: v for k, v in case["limits"].items() if k != "network"}),
  )


# Where memory is limited by the address space of each process, its end is met anywhere. A thread
# that meets it before it has said that it runs is waited for by threading for ever.
ADDRESS_SPACE = {"thread-bomb": {"outcome": ["exit", "pids_limit", "oom", "timeout"]}}


def expectation(case: dict, backend: str, memory_by: str) -> dict:
  """What is expected under this backend, which limits memory by this; None removes a field."""
  over = (case.get("per_backend") or {}).get(backend.rpartition("+")[2], {})
  if memory_by == "rlimit for each process":
    over = {**over, **ADDRESS_SPACE.get(case["id"], {})}
  return {k: v for k, v in {**case["expect"], **over}.items() if v is not None and k != "note"}


def check(result: Result, expect: dict, names: dict[str, str]) -> None:
  """Asserts all that `expect` says of a result."""
  outcomes = expect["outcome"] if isinstance(expect["outcome"], list) else [expect["outcome"]]
  shown = f"{result.outcome} {result.exit_code} {result.detail} {result.stderr[-300:]!r}"
  assert result.outcome in outcomes, shown
  if "exit_code" in expect and result.outcome == Outcome.exit:
    wanted = expect["exit_code"]
    wanted = int(names["N"]) if wanted == "@N@" else wanted
    assert result.exit_code in (wanted if isinstance(wanted, list) else [wanted]), shown
  if "signal" in expect:
    assert result.signal == signal.Signals[expect["signal"]]
  if "duration_between_s" in expect:
    low, high = expect["duration_between_s"]
    assert low <= result.wall_s <= 2 * high
  for stream in ("stdout", "stderr"):
    data = getattr(result, stream)
    checks = {k.removeprefix(stream + "_"): v for k, v in expect.items() if k.startswith(stream)}
    for kind, wanted in checks.items():
      check_stream(kind, data, getattr(result, stream + "_truncated"), wanted, names)


def check_stream(kind: str, data: bytes, truncated: bool, wanted, names: dict[str, str]) -> None:
  def text(value: str) -> bytes:
    for name, replacement in names.items():
      value = value.replace(f"@{name}@", replacement)
    return value.encode()

  checks = {
    "equals": lambda: data == text(wanted),
    "bytes_base64": lambda: data == base64.b64decode(wanted),
    "starts_with": lambda: data.startswith(text(wanted)),
    "contains": lambda: all(text(w) in data for w in wanted),
    "not_contains": lambda: not any(text(w) in data for w in wanted),
    "length": lambda: len(data) == wanted,
    "length_at_most": lambda: len(data) <= wanted,
    "length_at_least": lambda: len(data) >= wanted,
    "sha256": lambda: hashlib.sha256(data).hexdigest() == wanted,
    "truncated": lambda: truncated == wanted,
  }
  assert checks[kind](), (kind, data[:600], wanted)
