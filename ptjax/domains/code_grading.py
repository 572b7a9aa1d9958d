"""How an answer to a code task is graded.

The candidate runs in the sandbox on the tests' inputs; the expected values never enter it, and
the comparison happens here, on plain data that the candidate returned. A call that ends its process
costs that one test only.
"""

import ast
import re

from ptjax.envs.environment import Services, Task
from ptjax.rewards.failures import InfraFailure
from sandbox_runner import Limits
from sandbox_runner.grading import Call, answer_calls

LIMITS = Limits(wall_s=2.0, cpu_s=2.0, memory_mb=256, pids=16, disk_mb=16, output_bytes=1 << 16)
# Share of the memory limit that the candidate's process may map.
_CANDIDATE_MEMORY = 0.5

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_ONLY_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n[^`]*```\s*", re.DOTALL)


def extract_code(response: str) -> str:
  """The first fenced block of a response, or all of it without one.

  A block that the response ends within counts. One function for training and evaluation.
  """
  block = _FENCE.search(response)
  return block.group(1) if block else response


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


def grade_fence(task: Task, response: str, services: Services) -> float:
  """1 for nothing but one fenced block, 0.5 for one with text around it, else 0."""
  del task, services
  if response.count("```") != 2:
    return 0.0
  text = response.strip()
  return 1.0 if text.startswith("```") and text.endswith("```") else 0.5


async def grade_tests(task: Task, response: str, services: Services, limits: Limits) -> float:
  """Share of the hidden tests on which the candidate returns exactly what is expected.

  Raises InfraFailure for a lost sandbox.
  """
  if services.sandbox is None:
    raise ValueError(f"domain {task.domain} needs a sandbox; give Services a pool")
  calls = [Call(task.data["function"], tuple(arguments)) for arguments in task.data["inputs"]]
  answers = await answer_calls(
    services.sandbox,
    "candidate.py",
    extract_code(response).encode(errors="replace"),
    [calls],
    limits,
    independent=True,
    memory_mb=int(limits.memory_mb * _CANDIDATE_MEMORY),
  )
  if answers.result.is_infra_failure:
    raise InfraFailure(f"sandbox: {answers.result.outcome} {answers.result.detail}".rstrip())
  passed = [answers.equals(0, i, want) for i, want in enumerate(task.data["expected"])]
  return sum(passed) / len(passed)
