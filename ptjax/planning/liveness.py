"""What is in memory where a compiled program needs most of it.

The compiler gives one number. The schedule says which arrays are alive at each instruction: the
sum of their bytes follows the compiler's closely, and its largest terms have names.
"""

import dataclasses
from collections.abc import Sequence

from ptjax.sharding.hlo import Instruction, Program

# Their result is made of their operands' memory.
_ALIASES = frozenset(
  {
    "parameter", "tuple", "get-tuple-element", "bitcast", "while", "copy-done", "async-done",
    "all-gather-done", "all-reduce-done", "collective-permute-done", "optimization-barrier",
    "dynamic-update-slice", "scatter", "call", "conditional", "async-update",
  }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Buffer:
  """An array that is alive where most memory is used.

  Attributes:
    nbytes: on one device.
    shape: such as bf16[32,1,512,4096].
    opcode: what makes it.
    source: where in the traced program it comes from.
  """

  nbytes: int
  shape: str
  opcode: str
  source: str


def temporaries(program: Program) -> list[Buffer]:
  """The arrays alive at the peak, beside the arguments; largest first."""
  entry = list(program)[-1]
  live = _peak(program, entry, {})
  return sorted((_buffer(line) for line in live), key=lambda b: -b.nbytes)


def _buffer(line: Instruction) -> Buffer:
  return Buffer(line.hbm_bytes, line.made.lstrip("(").partition("{")[0], line.opcode, line.op_name)


def _in_place(line: Instruction) -> bool:
  return line.opcode in _ALIASES or (
    line.opcode in ("fusion", "custom-call") and "dynamic-update-slice" in line.name
  )


def _peak(program: Program, name: str, done: dict[str, list[Instruction]]) -> list[Instruction]:
  """Instructions whose results are alive at the peak of one computation, its callees included."""
  if name in done:
    return done[name]
  lines = program.get(name, ())
  owners = _owners(lines)
  last = {}
  for i, line in enumerate(lines):
    for operand in (line.name, *line.operands):
      for owner in owners.get(operand, ()):
        last[owner] = i
  if lines:  # what the root gives lives on
    for owner in owners[lines[-1].name]:
      last[owner] = len(lines)
  by_name = {line.name: line for line in lines}
  alive: dict[str, int] = {}
  best, most = [], -1
  for i, line in enumerate(lines):
    if owners[line.name] == {line.name} and line.hbm_bytes:
      alive[line.name] = line.hbm_bytes
    inner = []
    if line.opcode in ("while", "call", "conditional"):
      inner = max(
        (_peak(program, called, done) for called in line.called),
        key=lambda found: sum(x.hbm_bytes for x in found),
        default=[],
      )
    total = sum(alive.values()) + sum(x.hbm_bytes for x in inner)
    if total > most:
      most, best = total, [*(by_name[n] for n in alive), *inner]
    alive = {n: size for n, size in alive.items() if last[n] > i}
  done[name] = best
  return best


def _owners(lines: Sequence[Instruction]) -> dict[str, set[str]]:
  """For each result the instructions that own its memory; arguments are owned by no one."""
  owners: dict[str, set[str]] = {}
  for line in lines:
    if line.opcode == "parameter" or (line.opcode == "constant" and line.hbm_bytes < 1024):
      owners[line.name] = set()
    elif line.opcode == "get-tuple-element":
      owners[line.name] = owners.get(line.operands[0], set())
    elif line.opcode == "tuple":
      owners[line.name] = set().union(*(owners.get(o, set()) for o in line.operands))
    elif _in_place(line):
      # The largest operand is the one that is written to.
      sources = [owners.get(o, set()) for o in line.operands]
      many = line.opcode in ("while", "call", "conditional")
      owners[line.name] = set().union(*sources) if many else (sources[0] if sources else set())
    else:
      owners[line.name] = {line.name}
  return owners
