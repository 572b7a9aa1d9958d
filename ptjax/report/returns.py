"""What a run has gained for what it has spent, by domain: pure sums over its records."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ptjax.core.stats import difference_interval
from ptjax.report.run import PassRate, Run

Record = Mapping[str, Any]

HOUR = 3600.0
PETA = 1e15


@dataclasses.dataclass(frozen=True)
class Spent:
  """Of one domain, all phases together."""

  tokens: float = 0.0
  flops: float = 0.0
  device_s: float = 0.0
  sandbox_s: float = 0.0

  def plus(self, other: Mapping[str, float]) -> "Spent":
    values = dataclasses.asdict(self)
    return Spent(**{name: value + other[name] for name, value in values.items()})

  def usd(self, device_hour: float | None, sandbox_hour: float | None) -> float | None:
    """Money, where the price of a device is known."""
    if device_hour is None:
      return None
    return self.device_s / HOUR * device_hour + self.sandbox_s / HOUR * (sandbox_hour or 0.0)


@dataclasses.dataclass(frozen=True)
class Gain:
  """Difference of two pass rates, with its 95% interval."""

  mean: float
  low: float
  high: float

  def per(self, unit: float) -> "Gain | None":
    """Gain a unit; None where nothing was spent."""
    if unit <= 0:
      return None
    return Gain(self.mean / unit, self.low / unit, self.high / unit)


@dataclasses.dataclass(frozen=True)
class Return:
  """One domain, or all together.

  Attributes:
    domain: its name.
    spent: in the whole run.
    gain: of held-out tasks, before to after; None where either was not measured.
    late: of training tasks, from the third quarter of the run to the last; None where a quarter
      has none of them.
    late_spent: in the last quarter.
  """

  domain: str
  spent: Spent
  gain: Gain | None
  late: Gain | None
  late_spent: Spent


def gain(before: tuple[int, int], after: tuple[int, int]) -> Gain | None:
  """From (passed, tasks) to (passed, tasks)."""
  if not before[1] or not after[1]:
    return None
  low, high = difference_interval(before, after)
  return Gain(after[0] / after[1] - before[0] / before[1], low, high)


def quarters(costs: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Records of the third and of the last quarter of the steps."""
  if not costs:
    return [], []
  end = costs[-1]["step"] + 1
  half, late = math.floor(end / 2), math.floor(end * 3 / 4)
  return (
    [r for r in costs if half <= r["step"] < late],
    [r for r in costs if r["step"] >= late],
  )


def spent_on(costs: Iterable[Record], domain: str) -> Spent:
  """All phases of a domain."""
  total = Spent()
  for record in costs:
    for phase in record["domains"].get(domain, {"phases": {}})["phases"].values():
      total = total.plus(phase)
  return total


def by_phase(costs: Iterable[Record]) -> dict[str, Spent]:
  """All domains, by phase."""
  phases: dict[str, Spent] = {}
  for record in costs:
    for domain in record["domains"].values():
      for name, cost in domain["phases"].items():
        phases[name] = phases.get(name, Spent()).plus(cost)
  return phases


def counts(costs: Iterable[Record], domain: str) -> tuple[int, int]:
  """(passed, scored) training episodes of a domain."""
  found = [r["domains"][domain] for r in costs if domain in r["domains"]]
  return sum(d["passed"] for d in found), sum(d["scored"] for d in found)


def returns(run: Run) -> list[Return]:
  """Each domain that something was spent on, and "all" of them first if they are several.

  The gain of all is of all held-out tasks together, of the domains that both evaluations have.
  """
  names = list(dict.fromkeys(name for r in run.costs for name in r["domains"]))
  third, last = quarters(run.costs)
  before, after = run.pass_rates("before"), run.pass_rates("after")
  found = [
    Return(
      name,
      spent_on(run.costs, name),
      _held_out([name], before, after),
      gain(counts(third, name), counts(last, name)),
      spent_on(last, name),
    )
    for name in names
  ]
  if len(found) < 2:
    return found
  both = [name for name in names if name in before and name in after]
  pooled = [_sum(counts(part, name) for name in names) for part in (third, last)]
  everything = Return(
    "all together",
    _total(r.spent for r in found),
    _held_out(both, before, after),
    gain(*pooled),
    _total(r.late_spent for r in found),
  )
  return [everything, *found]


def _held_out(
  names: Sequence[str], before: Mapping[str, PassRate], after: Mapping[str, PassRate]
) -> Gain | None:
  if not names or any(name not in before or name not in after for name in names):
    return None
  first = _sum((before[n].passed, before[n].total) for n in names)
  return gain(first, _sum((after[n].passed, after[n].total) for n in names))


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
  pairs = list(pairs)
  return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def _total(parts: Iterable[Spent]) -> Spent:
  total = Spent()
  for part in parts:
    total = total.plus(dataclasses.asdict(part))
  return total
