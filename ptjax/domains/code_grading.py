"""How an answer to a code task is graded.

The candidate runs in the sandbox on the tests' inputs; the expected values never enter it, and
the comparison happens here, on plain data parsed from what the candidate returned.
"""

import ast
import importlib.resources
import json
import re
from typing import Any

from ptjax.envs.environment import Services, Task
from ptjax.rewards.failures import InfraFailure
from sandbox_runner import Limits, Request

LIMITS = Limits(wall_s=2.0, cpu_s=2.0, memory_mb=256, pids=16, disk_mb=16, output_bytes=1 << 16)
# Share of the memory limit that the candidate's process may map.
_CANDIDATE_MEMORY = 0.5

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_ONLY_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n[^`]*```\s*", re.DOTALL)
_DRIVER = importlib.resources.files("ptjax.domains").joinpath("guest_driver.py").read_bytes()


def extract_code(response: str) -> str:
  """The first fenced block of a response, or all of it without one.

  A block that the response ends within counts. One function for training and evaluation.
  """
  block = _FENCE.search(response)
  return block.group(1) if block else response


def same(value: Any, expected: Any) -> bool:
  """Equality of plain data by value and type: True is not 1, 1.0 is not 1."""
  if type(value) is not type(expected):
    return False
  if isinstance(expected, list):
    return len(value) == len(expected) and all(map(same, value, expected))
  if isinstance(expected, dict):
    return value.keys() == expected.keys() and all(same(value[k], expected[k]) for k in expected)
  return value == expected


def read_values(output: bytes) -> dict[int, Any]:
  """Values by test from the driver's output, which is hostile: what is not valid is left out.

  A test reported twice has no value, so a candidate cannot state several guesses.
  """
  values: dict[int, Any] = {}
  repeated: set[int] = set()
  for line in output.split(b"\n"):
    try:
      record = json.loads(line)
    except (ValueError, RecursionError):  # ValueError covers bad UTF-8, bad JSON, huge integers
      continue
    if not isinstance(record, dict) or record.keys() != {"test", "value"}:
      continue
    test = record["test"]
    if type(test) is not int:
      continue
    if test in values:
      repeated.add(test)
    values[test] = record["value"]
  return {test: value for test, value in values.items() if test not in repeated}


def grade_format(task: Task, response: str, services: Services) -> float:
  """1 for nothing but code that defines the function, 0.5 with text around it, else 0."""
  del services
  try:
    module = ast.parse(extract_code(response))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return 0.0
  names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
  if task.data["function"] not in names:
    return 0.0
  return 1.0 if "```" not in response or _ONLY_FENCE.fullmatch(response) else 0.5


async def grade_tests(task: Task, response: str, services: Services, limits: Limits) -> float:
  """Share of the hidden tests on which the candidate returns exactly what is expected."""
  values = read_values(await _run(task, extract_code(response), services, limits))
  expected = task.data["expected"]
  passed = [i in values and same(values[i], want) for i, want in enumerate(expected)]
  return sum(passed) / len(passed)


async def _run(task: Task, source: str, services: Services, limits: Limits) -> bytes:
  """Standard output of the driver on the candidate; raises InfraFailure for a lost sandbox."""
  if services.sandbox is None:
    raise ValueError(f"domain {task.domain} needs a sandbox; give Services a pool")
  memory = int(limits.memory_mb * 2**20 * _CANDIDATE_MEMORY)
  request = Request(
    argv=("python3", "guest_driver.py", "candidate.py", task.data["function"], str(memory)),
    files={
      "guest_driver.py": _DRIVER,
      "candidate.py": source.encode(errors="replace"),
    },
    stdin=json.dumps(task.data["inputs"]).encode(),
    limits=limits,
  )
  result = await services.sandbox.run(request)
  if result.is_infra_failure:
    raise InfraFailure(f"sandbox: {result.outcome} {result.detail}".rstrip())
  return result.stdout
