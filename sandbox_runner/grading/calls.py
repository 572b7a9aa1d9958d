"""What functions of an untrusted module return, as plain data on the host."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_runner.grading.guest.plain import decode, encode
from sandbox_runner.grading.match import matches
from sandbox_runner.pool import Pool
from sandbox_runner.types import Limits, Request, Result

DIRECTORY = Path(__file__).parent / "guest"
MAIN = "grade.py"
# One file for all modules of a driver: a search for each of them takes longer than the run of one.
PROGRAM = """import sys, types
for name, source in {modules!r}:
  sys.modules[name] = module = types.ModuleType(name)
  exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
module.main(*sys.argv[1:])
"""
TAKEN = {"grade", "tests"} | sys.stdlib_module_names


def program(*modules: str) -> bytes:
  """The text of a program that runs `main` of the last module, which may import the others."""
  package = "sandbox_runner.grading.guest"
  sources = [(name, "") for name in ("sandbox_runner", "sandbox_runner.grading", package)]
  sources += [(f"{package}.{name}", (DIRECTORY / f"{name}.py").read_text()) for name in modules]
  return PROGRAM.format(modules=sources).encode()


CALL_DRIVER = program("plain", "call_driver")


@dataclass(frozen=True)
class Call:
  """One call of a function of the module, with plain data."""

  function: str
  args: tuple = ()
  kwargs: Mapping[str, Any] = field(default_factory=dict)

  def encoded(self) -> list:
    kwargs = {name: encode(value) for name, value in self.kwargs.items()}
    return [None, self.function, [encode(a) for a in self.args], kwargs]


@dataclass(frozen=True)
class Answers:
  """What came of groups of calls.

  Attributes:
    result: of the process that ran the module; say nothing if it `is_infra_failure`.
    outcomes: for each group, for each call `{"value": encoded}`, `{"object": true}` for what is no
      plain data, `{"raised": built-in names, "args": encoded}`, or `{}` if no answer came, or more
      than one. All of it is hostile.
  """

  result: Result
  outcomes: list[list[dict]]

  def value(self, group: int, call: int) -> Any:
    """Raises KeyError or ValueError if this call did not return plain data."""
    return decode(self.outcomes[group][call]["value"])

  def equals(self, group: int, call: int, expected: Any) -> bool:
    """Whether this call returned a value of this type and equal to it: True is not 1."""
    outcome = self.outcomes[group][call]
    return "value" in outcome and matches(outcome["value"], expected)


async def answer_calls(
  pool: Pool,
  module: str,
  source: bytes,
  groups: Sequence[Sequence[Call]],
  limits: Limits | None = None,
  tenant: str = "",
  *,
  independent: bool = False,
  memory_mb: int = 0,
) -> Answers:
  """Makes the calls of each group, in order, on a fresh copy of the module, in one sandbox.

    answers = await answer_calls(pool, "solution.py", source, [[Call("add", (2, 3))]])
    assert answers.equals(0, 0, 5)

  Args:
    pool: where it is run.
    module: name of the module's file.
    source: its text.
    groups: the calls.
    limits: of the one run for all groups.
    tenant: see `Request.tenant`.
    independent: whether a call that ends its process costs itself only, and the rest of its group
      is made on another copy of the module, instead of being lost.
    memory_mb: what each process may map, less than the sandbox has, so that a call that takes too
      much fails by itself; 0 for no such limit.

  Raises ValueError for a module's name that is not `NAME.py`.
  """
  encoded = [[call.encoded() for call in group] for group in groups]
  order = {"groups": encoded, "independent": independent, "memory": memory_mb << 20}
  return await answer_order(pool, module, source, order, limits or Limits(), tenant)


async def answer_order(
  pool: Pool, module: str, source: bytes, order: dict, limits: Limits, tenant: str
) -> Answers:
  """`order` without the module's name; see the driver."""
  request = Request(
    ("python3", MAIN),
    files={MAIN: CALL_DRIVER, module: source},
    stdin=json.dumps({"module": module_name(module), **order}).encode(),
    limits=limits,
    tenant=tenant,
  )
  result = await pool.run(request)
  return Answers(result, read_outcomes(result.stdout, [len(g) for g in order["groups"]]))


def module_name(module: str) -> str:
  name = module.removesuffix(".py")
  if name == module or not name.isidentifier() or name in TAKEN:
    raise ValueError(
      f"module={module!r} must be NAME.py, and NAME neither 'grade' nor 'tests' nor the name of a "
      "module of the standard library; try 'solution.py'"
    )
  return name


def read_outcomes(output: bytes, sizes: list[int]) -> list[list[dict]]:
  """The driver's output is hostile: what is no answer is left out, and so are rival answers."""
  found: dict[tuple[int, int], dict] = {}
  for line in output.split(b"\n"):
    try:
      record = json.loads(line)
      place = (record["group"], record["call"])
      outcome = record["outcome"]
    except (ValueError, RecursionError, KeyError, TypeError):  # ValueError covers huge integers
      continue
    if isinstance(outcome, dict) and all(type(n) is int for n in place):
      found[place] = {} if place in found else outcome
  return [[found.get((g, c), {}) for c in range(size)] for g, size in enumerate(sizes)]
