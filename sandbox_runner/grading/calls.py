"""What functions of an untrusted module return, as plain data on the host."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_runner.grading.plain import decode, encode
from sandbox_runner.pool import Pool
from sandbox_runner.types import Limits, Request, Result

HERE = Path(__file__).parent
PLAIN, CALL_DRIVER = ((HERE / f"{n}.py").read_bytes() for n in ("plain", "call_driver"))
OWN_NAMES = ("plain", "call_driver", "unittest_driver", "tests")


@dataclass(frozen=True)
class Call:
  """One call of a function of the module, with plain data."""

  function: str
  args: tuple = ()
  kwargs: Mapping[str, Any] = field(default_factory=dict)

  def encoded(self) -> list:
    kwargs = {name: encode(value) for name, value in self.kwargs.items()}
    return [self.function, [encode(a) for a in self.args], kwargs]


@dataclass(frozen=True)
class Answers:
  """What came of groups of calls.

  Attributes:
    result: of the process that ran the module; say nothing if it `is_infra_failure`.
    outcomes: for each group, for each call `{"value": encoded}`, `{"raised": name, "message":
      text}`, or `{}` if nothing plain came back, or more than one answer to the same call.
  """

  result: Result
  outcomes: list[list[dict]]

  def value(self, group: int, call: int) -> Any:
    """Raises KeyError if this call did not return plain data."""
    return decode(self.outcomes[group][call]["value"])


async def answer_calls(
  pool: Pool,
  module: str,
  source: bytes,
  groups: Sequence[Sequence[Call]],
  limits: Limits | None = None,
  tenant: str = "",
) -> Answers:
  """Makes the calls of each group, in order, on a fresh copy of the module, in one sandbox.

  A call that ends its process costs the rest of its group. Raises ValueError for a module's name
  that is not `NAME.py`.

    answers = await answer_calls(pool, "solution.py", source, [[Call("add", (2, 3))]])
    assert answers.value(0, 0) == 5
  """
  encoded = [[call.encoded() for call in group] for group in groups]
  return await answer_encoded(pool, module, source, encoded, limits or Limits(), tenant)


async def answer_encoded(
  pool: Pool, module: str, source: bytes, groups: list[list], limits: Limits, tenant: str
) -> Answers:
  order = {"module": module_name(module), "groups": groups}
  request = Request(
    ("python3", "call_driver.py"),
    files={"call_driver.py": CALL_DRIVER, "plain.py": PLAIN, module: source},
    stdin=json.dumps(order).encode(),
    limits=limits,
    tenant=tenant,
  )
  result = await pool.run(request)
  return Answers(result, read_outcomes(result.stdout, [len(g) for g in groups]))


def module_name(module: str) -> str:
  name = module.removesuffix(".py")
  if name == module or not name.isidentifier() or name in OWN_NAMES:
    raise ValueError(f"module={module!r} must be NAME.py, with another name than {OWN_NAMES}")
  return name


def read_outcomes(output: bytes, sizes: list[int]) -> list[list[dict]]:
  """The driver's output is hostile: what is no answer is left out, and so are rival answers."""
  found: dict[tuple[int, int], dict] = {}
  for line in output.split(b"\n"):
    try:
      record = json.loads(line)
      place = (record["group"], record["call"])
      outcome = record["outcome"]
      if "value" in outcome:
        decode(outcome["value"])
    except (ValueError, RecursionError, KeyError, TypeError):  # ValueError covers huge integers
      continue
    if isinstance(outcome, dict) and all(type(n) is int for n in place):
      found[place] = {} if place in found else outcome
  return [[found.get((g, c), {}) for c in range(size)] for g, size in enumerate(sizes)]
