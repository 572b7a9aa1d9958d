"""The little of HLO text that an account of a program needs: computations and instructions."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLS = re.compile(
  r"(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
  r"|called_computations)=\{?((?:%[\w.\-]+(?:, )?)+)\}?"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_LEAF = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_COUNT = re.compile(r"(\d+)\)")
_ON_CHIP = re.compile(r"S\([1-9]")  # a memory space that is not HBM
_BITS = re.compile(r"[a-z]+(\d+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without the `%`.
    opcode: such as `all-gather-start`.
    result: its type, as text.
    attributes: all that follows the opcode: operands and attributes.
  """

  name: str
  opcode: str
  result: str
  attributes: str

  @property
  def called(self) -> tuple[str, ...]:
    """Computations that it runs. The end of an asynchronous operation names its own again."""
    if self.opcode.endswith(("-done", "-update")):
      return ()
    found = _CALLS.findall(self.attributes)
    return tuple(name.removeprefix("%") for names in found for name in names.split(", "))

  @property
  def trip_count(self) -> int | None:
    """Iterations of a loop, where the compiler states them."""
    found = _TRIPS.search(self.attributes)
    return int(found[1]) if found else None

  @functools.cached_property
  def operands(self) -> tuple[str, ...]:
    """Names of the instructions whose results it takes."""
    return tuple(_NAME.findall(self.attributes[: _closing("(" + self.attributes)]))

  @functools.cached_property
  def made(self) -> str:
    """Type of what it makes. A started one also names its operands: (result, operand, flags) of a
    copy, (operands, results, flags) of a collective."""
    if not self.opcode.endswith("-start") or not self.result.startswith("("):
      return self.result
    parts = tuple_parts(self.result)
    return parts[min(self.opcode != "copy-start", len(parts) - 1)]

  @functools.cached_property
  def hbm_bytes(self) -> int:
    """Bytes of what it makes that lie in HBM."""
    return sum(
      num_bytes((leaf,)) for leaf, layout in _laid_out(self.made) if not _ON_CHIP.search(layout)
    )

  @property
  def op_name(self) -> str:
    """Path of the JAX operation that it comes from."""
    found = _OP_NAME.search(self.attributes)
    return found[1] if found else ""


Program = Mapping[str, Sequence[Instruction]]


def computations(text: str) -> Program:
  """The instructions of each computation, callees before their callers and the entry last.

  Of a scheduled program they are in the order of the schedule.

  Raises:
    ValueError: the text holds no computation.
  """
  program: dict[str, list[Instruction]] = {}
  current: list[Instruction] | None = None
  for line in text.splitlines():
    if header := _HEADER.match(line):
      current = program.setdefault(header[1], [])
    elif line.startswith("}"):
      current = None
    elif current is not None and " = " in line:
      current.append(_instruction(line))
  if not program:
    raise ValueError("no computation in the text; pass what Compiled.as_text() returns")
  return program


def trip_count(program: Program, loop: Instruction) -> int | None:
  """Iterations of a loop: as the compiler states, else the bound that its counter is compared with.

  None where there is neither.
  """
  if loop.trip_count is not None:
    return loop.trip_count
  condition = _CONDITION.search(loop.attributes)
  bounds = [
    int(count[1])
    for line in (program[condition[1]] if condition else ())
    if line.opcode == "constant"
    and line.result.startswith(("s32[]", "u32[]"))
    and (count := _COUNT.match(line.attributes))
  ]
  return max(bounds, default=None)


def _instruction(line: str) -> Instruction:
  name, rest = line.strip().removeprefix("ROOT ").split(" = ", 1)
  rest = re.sub(r"/\*.*?\*/", "", rest)
  end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
  opcode, attributes = rest[end:].lstrip().split("(", 1)
  return Instruction(name.removeprefix("%"), opcode, rest[:end], attributes)


def _closing(text: str) -> int:
  """Index of the bracket that closes the first one."""
  depth = 0
  for at, character in enumerate(text):
    depth += (character in "([{") - (character in ")]}")
    if depth == 0:
      return at
  raise ValueError(f"unbalanced brackets in {text[:80]!r}")


def tuple_parts(result: str) -> list[str]:
  """The types in a tuple's type, which may be tuples again."""
  parts, start, depth = [], 1, 0
  for at, character in enumerate(result):
    depth += (character in "([{") - (character in ")]}")
    if depth == 0 or (depth == 1 and character == ","):
      parts.append(result[start:at].strip())
      start = at + 1
  return parts


def leaves(result: str) -> Iterator[tuple[str, tuple[int, ...]]]:
  """(dtype, shape) of each array in a type."""
  yield from (leaf for leaf, _ in _laid_out(result))


def _laid_out(result: str) -> Iterator[tuple[tuple[str, tuple[int, ...]], str]]:
  """The same with the layout of each as text."""
  for dtype, sizes, layout in _LEAF.findall(result):
    yield (dtype, tuple(int(n) for n in sizes.replace("<=", "").split(",") if n)), layout


def num_bytes(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> int:
  """Bytes of arrays as `leaves` names them."""
  total = 0
  for dtype, shape in shapes:
    bits = _BITS.match(dtype)
    size = 8 if dtype == "pred" else int(bits[1]) if bits else 0  # a token holds nothing
    for n in shape:
      size *= n
    total += -(-size // 8)
  return total
