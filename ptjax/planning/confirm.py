"""What the formulas of `search` have found, put before the compiler."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ptjax.models.config import DecoderConfig
from ptjax.planning.compiler import Compiled
from ptjax.planning.plan import Plan, make_plan
from ptjax.planning.search import CONTEXT_STEP, Candidate, with_context
from ptjax.planning.topology import Topology
from ptjax.train.experiment import Experiment

OnProgram = Callable[[Compiled], None]
_STRIDE = 1 / 16  # of the context, from one compilation to the next: the formulas are off by less


def confirm(
  found: Sequence[Candidate],
  shape: DecoderConfig,
  topology: Topology,
  wanted: int,
  on_program: OnProgram = lambda _: None,
) -> Iterator[tuple[Candidate, Plan]]:
  """Candidates with their compiled plans, in their order, until `wanted` of them fit."""
  fitting = 0
  for candidate in found:
    if fitting == wanted:
      return
    plan = make_plan(candidate.experiment, shape, topology, on_program)
    fitting += plan.fits
    yield candidate, plan


@dataclasses.dataclass(frozen=True)
class Longest:
  """The longest context, compiled.

  Attributes:
    length: tokens; 0 where none fits.
    plan: of that length, None where none fits.
    refused: the shortest length that the compiler has refused; None where none was tried.
  """

  length: int
  plan: Plan | None
  refused: int | None


def longest_context(
  e: Experiment,
  shape: DecoderConfig,
  topology: Topology,
  start: int,
  on_program: OnProgram = lambda _: None,
) -> Longest:
  """Goes from the formulas' answer `start` to the border that the compiler sees, in steps of a
  sixteenth of it (rounded to `search.CONTEXT_STEP`)."""
  stride = max(CONTEXT_STEP, int(start * _STRIDE) // CONTEXT_STEP * CONTEXT_STEP)
  plans: dict[int, Plan] = {}

  def fits(length: int) -> bool:
    plans[length] = make_plan(with_context(e, length), shape, topology, on_program)
    return plans[length].fits

  length, refused = border(fits, start, stride)
  return Longest(length, plans.get(length), refused)


def border(fits: Callable[[int], bool], start: int, stride: int) -> tuple[int, int | None]:
  """(the largest that fits, 0 for none; the smallest that does not, None if none was tried) of
  `start` and what lies whole strides from it; `fits` is asked for each at most once."""
  if start <= 0:
    return 0, None
  if fits(start):
    length = start
    while fits(length + stride):
      length += stride
    return length, length + stride
  length = start - stride
  while length > 0 and not fits(length):
    length -= stride
  return max(length, 0), length + stride
