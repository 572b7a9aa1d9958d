"""What the devices send each other, from the compiled program."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable

from ptjax.sharding.collectives import Collective


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Collectives of one kind along the same mesh axes.

  Attributes:
    kind: such as all-gather.
    axes: mesh axes along which the devices of a group differ.
    dcn: whether groups reach over slices.
    count: executions.
    sent: bytes that one device sends, all executions together.
  """

  kind: str
  axes: tuple[str, ...]
  dcn: bool
  count: int
  sent: float


def traffic(found: Iterable[Collective]) -> list[Traffic]:
  """All collectives of a program, loops counted as often as they run; most bytes first."""
  totals: dict[tuple[str, tuple[str, ...], bool], list[int]] = defaultdict(lambda: [0, 0])
  for one in found:
    if one.axes:  # else every device is alone, and sends nothing
      total = totals[one.kind, one.axes, one.over_slices]
      total[0] += one.times
      total[1] += one.times * one.wire_bytes
  flows = [Traffic(*key, count, float(sent)) for key, (count, sent) in totals.items()]
  return sorted(flows, key=lambda t: -t.sent)


def total_sent(flows: list[Traffic], *, dcn: bool) -> float:
  """Bytes that a device sends over one of the two networks."""
  return math.fsum(t.sent for t in flows if t.dcn == dcn)
