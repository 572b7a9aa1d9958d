"""Reads what the TPU compiler made of a program: its scheduled HLO text."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BITS = {"pred": 8, "s4": 4, "u4": 4}
_ARRAY = re.compile(r"(pred|bf16|[fsu]\d+\w*)\[([\d,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(
  r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name, opcode: as HLO has them.
    shape: text of the result's type.
    operands: names of instructions.
    called: names of computations.
    text: the whole line.
  """

  name: str
  opcode: str
  shape: str
  operands: tuple[str, ...]
  called: tuple[str, ...]
  text: str

  @functools.cached_property
  def nbytes(self) -> int:
    """Bytes of the result in HBM; what the compiler keeps on the chip, `S(1)`, counts nothing."""
    return array_bytes(self.result, hbm_only=True)

  @functools.cached_property
  def result(self) -> str:
    """Type of what the instruction makes. A started one also names its operand: (result, operand,
    flags) of a copy, (operand, result, flags) of a collective."""
    if not self.opcode.endswith("-start"):
      return self.shape
    arrays = [found[0] for found in re.finditer(_ARRAY, self.shape)]
    which = 0 if self.opcode == "copy-start" else 1
    return arrays[min(which, len(arrays) - 1)]

  @property
  def source(self) -> str:
    """Where in the traced program it comes from."""
    found = re.search(r'op_name="([^"]*)"', self.text)
    return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Module:
  """Computations by name, their instructions in the order of the schedule."""

  computations: dict[str, tuple[Instruction, ...]]
  entry: str

  def trips(self, loop: Instruction) -> int:
    """How often a `while` runs at most: the bound that its condition compares the counter with."""
    condition = re.search(r"condition=%([\w.-]+)", loop.text)
    bounds = [
      int(found[1])
      for line in (self.computations[condition[1]] if condition else ())
      if (found := re.search(r"[su]32\[\][^=]* constant\((\d+)\)", line.text))
    ]
    return max(bounds, default=1)

  def walk(self) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that runs, with how often it does."""
    yield from self._walk(self.entry, 1)

  def _walk(self, name: str, times: int) -> Iterator[tuple[Instruction, int]]:
    for line in self.computations.get(name, ()):
      yield line, times
      if line.opcode == "while":
        body = re.search(r"body=%([\w.-]+)", line.text)
        if body:
          yield from self._walk(body[1], times * self.trips(line))
      elif line.opcode in ("call", "conditional", "async-start"):
        for called in line.called:
          yield from self._walk(called, times)


def array_bytes(shape: str, *, hbm_only: bool = False) -> int:
  """Bytes of an array or of all arrays of a tuple, as its type is written."""
  total = 0
  for dtype, dims, layout in _ARRAY.findall(shape):
    if hbm_only and re.search(r"S\([1-9]", layout):
      continue
    width = re.search(r"\d+", dtype.removeprefix("b"))
    bits = _BITS.get(dtype) or int(width[0] if width else 8)
    total += math.prod(int(d) for d in dims.split(",") if d) * bits // 8
  return total


def parse(text: str) -> Module:
  """The module that `compiled.as_text()` prints."""
  computations: dict[str, tuple[Instruction, ...]] = {}
  entry, name, lines = "", "", []
  for line in text.splitlines():
    header = re.match(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$", line)
    if header:
      name, lines = header[2], []
      entry = name if header[1] else entry
    elif line == "}":
      computations[name] = tuple(lines)
    elif " = " in line and line.startswith("  "):
      lines.append(_instruction(line))
  if not entry:
    raise ValueError("the compiled program's text has no entry computation")
  return Module(computations, entry)


def _instruction(line: str) -> Instruction:
  left, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
  shape, rest = _split_type(right)
  opcode, _, arguments = rest.partition("(")
  inside = arguments[: _closing(arguments)]
  called = list(_CALLED.findall(rest))
  for branches in _BRANCHES.findall(rest):
    called += _NAME.findall(branches)
  operands = tuple(_NAME.findall(inside))
  return Instruction(left.lstrip("%"), opcode, shape, operands, tuple(called), line)


def _split_type(text: str) -> tuple[str, str]:
  """The type at the start of `text`, which may be a tuple, and what follows."""
  if not text.startswith("("):
    shape, _, rest = text.partition(" ")
    return shape, rest
  end = _closing(text[1:]) + 2
  return text[:end], text[end:].lstrip()


def _closing(text: str) -> int:
  """Index of the parenthesis that closes one opened before `text`."""
  depth = 1
  for i, char in enumerate(text):
    depth += (char == "(") - (char == ")")
    if depth == 0:
      return i
  return len(text)
