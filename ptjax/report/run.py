"""The files of a run, read for reporting. Any of them may be absent: a run may still go on."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptjax.core import metrics, stats

Record = Mapping[str, Any]

HELDOUT = "heldout.jsonl"


@dataclasses.dataclass(frozen=True)
class PassRate:
  """Tasks passed out of tasks tried, with the 95% Wilson interval of the rate."""

  passed: int
  total: int

  @property
  def rate(self) -> float:
    return self.passed / self.total

  @property
  def interval(self) -> tuple[float, float]:
    return stats.wilson_interval(self.passed, self.total)


@dataclasses.dataclass(frozen=True)
class Series:
  """One metric over the steps that recorded it; nan where it was null."""

  steps: tuple[int, ...]
  values: tuple[float, ...]

  def __bool__(self) -> bool:
    return any(map(math.isfinite, self.values))

  @property
  def finite(self) -> list[float]:
    return [value for value in self.values if math.isfinite(value)]


@dataclasses.dataclass(frozen=True)
class Run:
  """What a working directory says about its run.

  Attributes:
    name: name of the directory.
    metrics: records of `metrics.jsonl`, one a step.
    config: `config.json`, empty when absent.
    trajectories: records of `trajectories.jsonl`.
    evals: records of `eval.jsonl`: when, step, domain, passed, total.
    missing: names of the files that are not there.
    heldout: records of `heldout.jsonl`, of supervised runs: when, step and metrics by name.
    costs: records of `costs.jsonl`: what each step has cost, by domain and phase.
    decisions: records of `decisions.jsonl`: what the run has done about its domains, and why.
  """

  name: str
  metrics: Sequence[Record]
  config: Record
  trajectories: Sequence[Record]
  evals: Sequence[Record]
  missing: tuple[str, ...]
  heldout: Sequence[Record] = ()
  costs: Sequence[Record] = ()
  decisions: Sequence[Record] = ()

  @property
  def domains(self) -> list[str]:
    """Domains in the order of their first mention, evaluations first."""
    named = [*self.evals, *self.trajectories]
    return list(dict.fromkeys(record["domain"] for record in named))

  @property
  def measured(self) -> list[Record]:
    """Evaluations that tried a task: a domain whose sandbox was down has no rate, not rate 0."""
    return [record for record in self.evals if record["total"] > 0]

  def series(self, name: str) -> Series:
    rows = [(record["step"], record[name]) for record in self.metrics if name in record]
    values = (math.nan if value is None else float(value) for _, value in rows)
    return Series(tuple(step for step, _ in rows), tuple(values))

  def reward_by_domain(self) -> dict[str, Series]:
    """`reward/<domain>` by domain, in the order of `domains`."""
    names = dict.fromkeys(name for record in self.metrics for name in record)
    rest = [n.removeprefix("reward/") for n in names if n.startswith("reward/")]
    known = [domain for domain in self.domains if domain in rest]
    # A name with a slash is a node of a reward tree, unless a domain goes by it.
    recorded = [name for name in rest if "/" not in name and name not in ("mean", "std")]
    return {domain: self.series(f"reward/{domain}") for domain in dict.fromkeys(known + recorded)}

  def pass_rates(self, when: str) -> dict[str, PassRate]:
    """Held-out pass rate by domain; the last record of a domain counts, unless it tried no task."""
    records = {record["domain"]: record for record in self.measured if record["when"] == when}
    return {domain: PassRate(r["passed"], r["total"]) for domain, r in records.items()}

  def held_out_by_step(self) -> dict[int, PassRate]:
    """Pooled held-out pass rate at every evaluated step."""
    records = {(record["step"], record["domain"]): record for record in self.measured}
    steps = sorted({step for step, _ in records})
    return {
      step: pooled(PassRate(r["passed"], r["total"]) for (s, _), r in records.items() if s == step)
      for step in steps
    }


def pooled(rates) -> PassRate:
  """All tasks together: sum of the passes over the sum of the tasks."""
  rates = list(rates)
  return PassRate(sum(rate.passed for rate in rates), sum(rate.total for rate in rates))


def _optional(path: Path) -> list[dict[str, Any]]:
  """Records of a file that older runs and other kinds of runs have not."""
  return metrics.read_jsonl(path) if path.exists() else []


def load_run(workdir: str | os.PathLike) -> Run:
  """Reads a working directory; a line torn by a kill at the end of a file is left out.

  Raises:
    ValueError: the directory does not exist, or a file in it is damaged.
  """
  workdir = Path(workdir)
  if not workdir.is_dir():
    raise ValueError(f"{workdir} is not a directory; give the --workdir of a run")
  supervised = (workdir / HELDOUT).exists()
  of_rl = ("eval.jsonl", "trajectories.jsonl")
  names = ("metrics.jsonl", *of_rl, "config.json")
  absent = tuple(name for name in names if not (workdir / name).exists())
  # A supervised run measures its held-out examples instead.
  missing = tuple(name for name in absent if not (supervised and name in of_rl))
  records = {
    name: [] if name in absent else metrics.read_jsonl(workdir / name) for name in names[:3]
  }
  config = {}
  if "config.json" not in absent:
    try:
      config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
      raise ValueError(f"{workdir / 'config.json'} is not JSON: {error}") from error
  return Run(
    workdir.resolve().name,
    records["metrics.jsonl"],
    config,
    records["trajectories.jsonl"],
    records["eval.jsonl"],
    missing,
    metrics.read_jsonl(workdir / HELDOUT) if supervised else [],
    *(_optional(workdir / name) for name in ("costs.jsonl", "decisions.jsonl")),
  )
