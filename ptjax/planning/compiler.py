"""Compiles a program for a TPU and reads what the compiler says of its memory."""

import dataclasses
import re
import time
import warnings
from typing import Any

import jax
from jax.sharding import Mesh

from ptjax.planning.collectives import Traffic, traffic
from ptjax.planning.liveness import Buffer, temporaries
from ptjax.planning.programs import Program
from ptjax.sharding.collectives import collectives
from ptjax.sharding.hlo import computations

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
  """The compiler's refusal.

  Attributes:
    needed: bytes on one device, as far as the compiler told.
    limit: bytes that it has.
    text: its own words, the first line.
    buffers: the largest arrays that it names; may be none.
  """

  needed: float | None
  limit: float | None
  text: str
  buffers: tuple[Buffer, ...]


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A program as the TPU compiler sees it; bytes are of one device.

  Attributes:
    name: of the program.
    seconds: that lowering and compiling took.
    arguments, outputs, temporaries: bytes; what an output takes over from an argument counts
      as argument only.
    peak: bytes of the program where it needs most, arguments included.
    buffers: arrays alive there beside the arguments, largest first.
    traffic: collectives of one execution.
    error: set where it does not fit; the other figures are then 0.
  """

  name: str
  seconds: float
  arguments: int = 0
  outputs: int = 0
  temporaries: int = 0
  peak: int = 0
  buffers: tuple[Buffer, ...] = ()
  traffic: tuple[Traffic, ...] = ()
  error: OutOfMemory | None = None


def compile_program(program: Program, mesh: Mesh) -> Compiled:
  """Lowers and compiles; a program that is too large is a result, any other error is raised."""
  start = time.monotonic()
  with warnings.catch_warnings():
    # Donated arguments that no output can use: so it is on the TPU, too.
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
    lowered = program.lower()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return Compiled(program.name, time.monotonic() - start, error=read_refusal(str(error)))
  seconds = time.monotonic() - start
  memory: Any = compiled.memory_analysis()
  text = computations(compiled.as_text() or "")
  return Compiled(
    program.name,
    seconds,
    memory.argument_size_in_bytes,
    memory.output_size_in_bytes - memory.alias_size_in_bytes,
    memory.temp_size_in_bytes,
    memory.peak_memory_in_bytes,
    tuple(temporaries(text)),
    tuple(traffic(collectives(text, mesh, unknown_trips=1))),
  )


def read_refusal(text: str) -> OutOfMemory:
  """The figures in a RESOURCE_EXHAUSTED error of the TPU compiler, of which it has two forms:

  ... the total memory required for HLO temporaries (46.38G) exceeds available HBM (15.75G).
  ... Used 20.1G of 15.75G hbm. ... followed by its largest allocations
  """
  needed = limit = None
  if (found := re.search(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm", text)) or (
    found := re.search(r"\(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)", text)
  ):
    needed, limit = size(found[1]), size(found[2])
  named = re.findall(
    r"Size: ([\d.]+[KMGT]?)\n(?:\s*Operator: op_(?:type|name)=(.*)\n)?\s*Shape: (\S+)", text
  )
  buffers = tuple(Buffer(int(size(n)), shape.partition("{")[0], "", op) for n, op, shape in named)
  return OutOfMemory(needed, limit, text.splitlines()[0], buffers)


def size(text: str) -> float:
  """Bytes of a number with a unit, such as 15.75G."""
  digits = text.rstrip("KMGT")
  return float(digits) * _UNITS[text[len(digits) :]]
