"""Metrics: reductions that merge exactly, and the writer of `metrics.jsonl` and TensorBoard.

A mean travels as (total, count) and is divided once, after the last merge, so that neither the
split into micro-batches nor the padding of a shard moves it. Reductions are pytrees: they come
out of jit, merge on the device or on the host, and are read by `summarize`.

Names that ptjax writes. `<domain>` is the name of a domain, `<node>` the path of a node in its
reward tree. Shares lie in [0, 1], logarithms are natural, "over tokens" means over the sampled
(action) tokens of the global batch, "over trained tokens" over those of the trajectories that the
policy's loss computes: without KL or entropy in it, those of advantage 0 are left out.

  ============================== ==========================================================
  reward/mean, reward/std        root of the reward tree over scored episodes
  reward/<domain>                the same mean over one domain
  reward/<domain>/<node>         mean of one node of the domain's tree
  groups/zero_std_frac           share of groups whose rewards are all equal (no gradient)
  groups/solve_rate              mean over groups of the share of passed episodes
  balance/…                      shares of the domains, where they move (`telemetry`)
  groups/dropped_<reason>        groups that dynamic sampling dropped: short, unsolved, solved
  groups/rounds, missing         rollouts of the step, and groups that it could not find
  length/mean, min, max          sampled tokens an episode
  length/passed, length/failed   the mean over the episodes that passed, and that did not
  length/clipped_frac            share of episodes cut by the length limit
  policy/entropy                 mean entropy of the sampler over trained tokens, nats
  policy/kl                      mean KL(policy || reference) over tokens, nats
  policy/clip_frac_low, _high    share of trained tokens clipped from below, above
  policy/entropy_coef            weight of the entropy bonus, where it adapts
  policy/negative_drift_frac     share of trained tokens masked because the policy left them
  correction/weight_mean         mean correction weight over trained tokens
  correction/dropped_frac        share of trained tokens whose weight is 0
  correction/ess                 effective sample size of the weights, share of trained tokens
  policy/ratio_mean              mean ratio of the new to the old policy, trained tokens
  optim/grad_norm                global norm of the gradient before clipping
  optim/lr                       learning rate of the step
  router/<what>/<n>              load of the experts of layer n, see `train.router.load_metrics`
  value/loss                     value loss over tokens (runs with a critic)
  value/explained_variance       1 - Var(return - value)/Var(return)
  advantage/mean, std, min, max  advantages over tokens, as they enter the loss
  mismatch/kl                    KL(rollout || trainer) over trained tokens, nats
  mismatch/ratio_max             greatest trainer/rollout ratio of a trained token
  mismatch/ess                   effective sample size of these ratios, share of trained tokens
  rollout/truncated              share of episodes cut before their end
  rollout/stale                  episodes dropped for their age, where there were any
  rollout/infra_failed           share of episodes lost to the infrastructure (never trained)
  rollout/unscorable             share of episodes whose grader gave no value (never trained)
  perf/rollout_tokens_per_s      sampled tokens a second of the rollout phase
  perf/train_tokens_per_s        tokens (prompts too) a second of the training phase
  perf/time_rollout, time_score,
  time_train, time_total         seconds of the step by phase; the total is wall clock
  perf/mfu                       share of the machine's peak FLOP/s in the training phase
  perf/peak_memory_gb            peak device memory since the start, 10⁹ bytes
  ============================== ==========================================================

Everything that depends on the clock or the machine, and nothing else, is named `perf/…`: two
deterministic runs agree bit for bit in every other key (`without_perf` leaves those).
"""

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

Array = Any  # a device array or tracer, a numpy array or scalar, or a Python number

PERF_PREFIX = "perf/"


def _namespace(x: Array):
  """jnp for device arrays and tracers; numpy, in float64, for everything on the host."""
  return jnp if isinstance(x, jax.Array) else np


def _masked(values: Array, mask: Array | None):
  """(values, mask) as arrays of one shape, values in float32 on the device, float64 on the host."""
  xp = _namespace(values)
  values = xp.asarray(values, jnp.float32 if xp is jnp else np.float64)
  mask = xp.ones(values.shape, bool) if mask is None else xp.asarray(mask, bool)
  return values, xp.broadcast_to(mask, values.shape)


def _or_nan(value: Array, present: Array):
  xp = _namespace(value)
  return xp.where(present, value, xp.nan)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean as total and count: sum(values) and the number of values.

  The count is an int32 on the device: float32 stops counting tokens at 2^24.
  """

  total: Array
  count: Array

  @classmethod
  def of(cls, values: Array, mask: Array | None = None) -> Self:
    """Reduces values of any shape; where the mask is 0, values may be anything, nan included."""
    values, mask = _masked(values, mask)
    xp = _namespace(values)
    return cls(xp.where(mask, values, 0).sum(), mask.sum())

  def merge(self, other: Self) -> Self:
    return type(self)(self.total + other.total, self.count + other.count)

  def compute(self) -> Array:
    """total/count; nan when nothing was counted."""
    xp = _namespace(self.count)
    return _or_nan(self.total / xp.maximum(self.count, 1), self.count > 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Std:
  """A sample standard deviation (ddof=1), as count, mean and sum of squared deviations.

  Centred sums merge without subtracting two large numbers, as sum(x²) - n·mean² would.
  Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for
  computing sample variances", 1979, eq. 2.1.
  """

  count: Array
  mean: Array
  squares: Array

  @classmethod
  def of(cls, values: Array, mask: Array | None = None) -> Self:
    values, mask = _masked(values, mask)
    xp = _namespace(values)
    count = mask.sum()
    mean = xp.where(mask, values, 0).sum() / xp.maximum(count, 1)
    squares = xp.where(mask, xp.square(xp.where(mask, values, 0) - mean), 0).sum()
    return cls(count, mean, squares)

  def merge(self, other: Self) -> Self:
    xp = _namespace(self.count)
    count = self.count + other.count
    share = other.count / xp.maximum(count, 1)
    delta = other.mean - self.mean
    squares = self.squares + other.squares + delta * delta * self.count * share
    return type(self)(count, self.mean + delta * share, squares)

  def compute(self) -> Array:
    """Standard deviation; nan for fewer than two values."""
    xp = _namespace(self.count)
    return _or_nan(xp.sqrt(self.squares / xp.maximum(self.count - 1, 1)), self.count > 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Max:
  """Greatest value; -inf stands for none."""

  value: Array

  @classmethod
  def of(cls, values: Array, mask: Array | None = None) -> Self:
    values, mask = _masked(values, mask)
    xp = _namespace(values)
    return cls(xp.where(mask, values, -xp.inf).max(initial=-xp.inf))

  def merge(self, other: Self) -> Self:
    return type(self)(_namespace(self.value).maximum(self.value, other.value))

  def compute(self) -> Array:
    return _or_nan(self.value, self.value > -math.inf)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Min:
  """Least value; +inf stands for none."""

  value: Array

  @classmethod
  def of(cls, values: Array, mask: Array | None = None) -> Self:
    values, mask = _masked(values, mask)
    xp = _namespace(values)
    return cls(xp.where(mask, values, xp.inf).min(initial=xp.inf))

  def merge(self, other: Self) -> Self:
    return type(self)(_namespace(self.value).minimum(self.value, other.value))

  def compute(self) -> Array:
    return _or_nan(self.value, self.value < math.inf)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Histogram:
  """Counts by bin. Bin i is [edges[i], edges[i+1]), the last one closed; the rest is not counted.

  `summarize` writes the share of each bin as the scalar `<name>/<lo>-<hi>`.
  """

  counts: Array
  edges: tuple[float, ...] = dataclasses.field(metadata={"static": True})

  @classmethod
  def of(cls, values: Array, edges: tuple[float, ...], mask: Array | None = None) -> Self:
    if len(edges) < 2 or any(a >= b for a, b in itertools.pairwise(edges)):
      raise ValueError(f"edges={edges}: needs two or more strictly rising edges")
    values, mask = _masked(values, mask)
    xp = _namespace(values)
    lows, highs = xp.asarray(edges[:-1]), xp.asarray(edges[1:])
    x = values[..., None]
    inside = (x >= lows) & ((x < highs) | ((x == highs) & (highs == edges[-1])))
    return cls((inside & mask[..., None]).reshape(-1, len(edges) - 1).sum(0), edges)

  def merge(self, other: Self) -> Self:
    if self.edges != other.edges:
      raise ValueError(f"cannot merge histograms of edges {self.edges} and {other.edges}")
    return type(self)(self.counts + other.counts, self.edges)

  def compute(self) -> Array:
    """Shares of the bins, summing to 1; nan when nothing was counted."""
    xp = _namespace(self.counts)
    total = self.counts.sum()
    return _or_nan(self.counts / xp.maximum(total, 1), total > 0)


@runtime_checkable
class Metric(Protocol):
  """What merges over micro-batches and shards, and is computed once."""

  def merge(self, other: Any) -> Any: ...
  def compute(self) -> Array: ...


def merge(*parts: Mapping[str, Metric]) -> dict[str, Metric]:
  """Merges metrics of micro-batches or shards by name; a name may be absent from a part."""
  merged: dict[str, Metric] = {}
  for part in parts:
    for name, metric in part.items():
      earlier: Any = merged.get(name)  # of the same kind
      merged[name] = metric if earlier is None else earlier.merge(metric)
  return merged


def summarize(metrics: Mapping[str, Metric | Array]) -> dict[str, float]:
  """Host floats by name, fetched from the device in one transfer; plain scalars pass through."""
  scalars: dict[str, float] = {}
  for name, metric in jax.device_get(dict(metrics)).items():
    if isinstance(metric, Histogram):
      bins = zip(itertools.pairwise(metric.edges), metric.compute(), strict=True)
      scalars |= {f"{name}/{low:.2f}-{high:.2f}": float(share) for (low, high), share in bins}
    else:
      value = metric if not isinstance(metric, Metric) else metric.compute()
      scalars[name] = float(value)
  return scalars


def without_perf(record: Mapping[str, Any]) -> dict[str, Any]:
  """The keys of a record that a deterministic run reproduces bit for bit."""
  return {name: value for name, value in record.items() if not name.startswith(PERF_PREFIX)}


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
  """Records of a JSONL file, without the line that a kill tore off at its end.

  Lines end in "\\n" alone: model output may hold other characters that split text into lines.

  Raises:
    ValueError: a line other than the last is not a JSON object.
  """
  records = []
  lines = Path(path).read_bytes().split(b"\n")
  for number, line in enumerate(lines, start=1):
    if not line:
      continue
    try:
      record = json.loads(line)
    except ValueError as error:  # UnicodeDecodeError, of a torn character, included
      if number == len(lines):  # no newline after it: torn
        break
      raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(record, dict):
      raise ValueError(f"{path}, line {number} is not a JSON object: {line[:80]!r}")
    records.append(record)
  return records


def write_jsonl(path: str | os.PathLike, records: Iterable[Mapping[str, Any]]):
  """Replaces the file atomically: a kill leaves the old file or the new one."""
  path = Path(path)
  staging = path.with_name(path.name + ".tmp")
  with open(staging, "wb") as file:
    for record in records:
      file.write(_encode(record))
    file.flush()
    os.fsync(file.fileno())
  os.replace(staging, path)


def append_jsonl(path: str | os.PathLike, records: Iterable[Mapping[str, Any]]):
  """Appends records; they have reached the operating system when this returns."""
  with open(path, "ab") as file:
    for record in records:
      file.write(_encode(record))


def drop_from_step(path: str | os.PathLike, step: int) -> list[dict[str, Any]]:
  """Drops the records whose `step` is `step` or later, and a torn last line; returns the rest.

  For resuming from the checkpoint taken before `step`: what was logged after it happens again.
  """
  if not Path(path).exists():
    return []
  kept = [record for record in read_jsonl(path) if record["step"] < step]
  write_jsonl(path, kept)
  return kept


def _encode(record: Mapping[str, Any]) -> bytes:
  return json.dumps(record, sort_keys=True, allow_nan=False).encode() + b"\n"


class MetricsWriter:
  """Writes one record a step to `<workdir>/metrics.jsonl`, and to TensorBoard in `<workdir>/tb`.

  A line is one JSON object with sorted keys, `step` among them, whose values are finite numbers
  or null (for nan and ±inf, which JSON lacks). Every line reaches the operating system before
  `write` returns: killing the process loses none. Only one process of a job may write.

  Args:
    workdir: directory of the run; made when absent.
    resume_step: first step that this run will write. Lines of that step and later ones, written
      after the checkpoint that was restored, are dropped; so is a torn last line.
    tensorboard: whether to write event files too. TensorBoard hides the events that
      `resume_step` drops.

  Raises:
    ValueError: the file holds metrics and no resume_step is given.
  """

  def __init__(
    self, workdir: str | os.PathLike, resume_step: int | None = None, *, tensorboard: bool = True
  ):
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    self.path = workdir / "metrics.jsonl"
    if resume_step is None and self.path.exists() and self.path.stat().st_size:
      raise ValueError(
        f"{self.path} holds metrics of an earlier run; give resume_step or another workdir"
      )
    kept = [] if resume_step is None else drop_from_step(self.path, resume_step)
    self._last_step = kept[-1]["step"] if kept else (resume_step or 0) - 1
    self._file = open(self.path, "ab")  # noqa: SIM115, closed by close()
    self._events = None
    if tensorboard:
      import tensorboardX

      # Event files are named by the second: a quick restart would overwrite without the suffix.
      suffix = f".{resume_step or 0}.{os.getpid()}"
      self._events = tensorboardX.SummaryWriter(
        str(workdir / "tb"), purge_step=resume_step, filename_suffix=suffix
      )

  def write(self, step: int, metrics: Mapping[str, Metric | Array]) -> dict[str, float | None]:
    """Appends the record of a step and returns it as written, `step` included.

    Raises:
      ValueError: the step does not follow the last one written, or a metric is called `step`.
    """
    if step <= self._last_step:
      raise ValueError(f"step {step} after step {self._last_step}: one record a step, in order")
    if "step" in metrics:
      raise ValueError("a metric cannot be called 'step'")
    scalars = summarize(metrics)
    record = {name: v if math.isfinite(v) else None for name, v in scalars.items()} | {"step": step}
    self._file.write(_encode(record))
    self._file.flush()
    self._last_step = step
    if self._events is not None:
      for name, value in sorted(record.items()):
        if name != "step" and value is not None:
          self._events.add_scalar(name, value, step)
      self._events.flush()
    return record

  def close(self):
    self._file.close()
    if self._events is not None:
      self._events.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exc_info):
    self.close()
