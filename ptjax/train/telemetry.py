"""What a step reports: rewards, groups, lengths, advantages, times."""

import contextlib
import dataclasses
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ptjax.algos.value_loss import explained_variance
from ptjax.core.metrics import Max, Mean, Min, Std
from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.envs.tools import CallError
from ptjax.experience.balance import Seen
from ptjax.experience.collect import Played
from ptjax.experience.groups import Sampled, by_group
from ptjax.rollout.engine import EngineStats
from ptjax.train.batch import Batch, PerAction

WORST = 5
"""Domains of which `domains/pass_worst` is the mean, those with the lowest pass rates."""


def rollout_metrics(played: Sequence[Played]) -> dict[str, Any]:
  """Metrics of the episodes of a step, by the names of `core.metrics`."""
  scored = [p for p in played if p.trainable]
  rewards = np.asarray([p.grade.rewards[""] for p in scored], np.float64)
  lengths = np.asarray([p.episode.action_mask.sum() for p in played], np.float64)
  clipped = np.asarray([p.episode.finish_reason is FinishReason.LENGTH for p in played], np.float64)
  passed = np.asarray([p.grade.passed for p in played], bool)
  failed = np.asarray([p.trainable and not p.grade.passed for p in played], bool)
  outcomes = [p.grade.outcome for p in played]
  metrics = {
    "reward/mean": Mean.of(rewards),
    "reward/std": Std.of(rewards),
    "length/mean": Mean.of(lengths),
    "length/min": Min.of(lengths),
    "length/max": Max.of(lengths),
    "length/passed": Mean.of(lengths, passed),
    "length/failed": Mean.of(lengths, failed),
    "length/clipped_frac": Mean.of(clipped),
    "rollout/truncated": float(outcomes.count(Outcome.TRUNCATED)),
    "rollout/infra_failed": float(outcomes.count(Outcome.INFRA_FAILED)),
    "rollout/unscorable": float(outcomes.count(Outcome.UNSCORABLE)),
  }
  for name in dict.fromkeys(p.spec.task.domain for p in played):
    members = [p for p in scored if p.spec.task.domain == name]
    metrics |= _domain_metrics(name, members)
  return metrics | _group_metrics(scored) | turn_metrics(played)


def turn_metrics(played: Sequence[Played]) -> dict[str, Any]:
  """Turns, tool calls and endings of the episodes that may have several turns; {} without any."""
  several = [p.episode for p in played if p.several_turns]
  if not several:
    return {}
  calls = Counter[str]()
  for episode in several:
    calls.update(episode.calls)
  malformed = [sum(e.calls.get(kind, 0) for kind in CallError) for e in several]
  endings = Counter(e.ending for e in several)
  metrics: dict[str, Any] = {
    "turns/mean": Mean.of(np.asarray([len(e.responses) for e in several], np.float64)),
    "turns/max": Max.of(np.asarray([len(e.responses) for e in several], np.float64)),
    "tools/calls": Mean.of(np.asarray([sum(e.calls.values()) for e in several], np.float64)),
    "tools/malformed": Mean.of(np.asarray(malformed, np.float64)),
    "perf/time_tools": Mean.of(np.asarray([e.tool_s for e in several], np.float64)),
  }
  metrics |= {f"tools/error_{kind}": float(calls[kind]) for kind in CallError if calls[kind]}
  return metrics | {f"turns/ended_{ending}": float(endings[ending]) for ending in endings}


def _domain_metrics(name: str, members: Sequence[Played]) -> dict[str, Any]:
  metrics: dict[str, Any] = {
    f"reward/{name}": Mean.of(np.asarray([p.grade.rewards[""] for p in members])),
    f"pass/{name}": Mean.of(np.asarray([float(p.grade.passed) for p in members])),
  }
  paths = dict.fromkeys(path for p in members for path in p.grade.rewards if path)
  for path in paths:
    values = [p.grade.rewards[path] for p in members if path in p.grade.rewards]
    metrics[f"reward/{name}/{path}"] = Mean.of(np.asarray(values))
  return metrics


def passed_by_domain(played: Sequence[Played]) -> dict[str, tuple[int, int]]:
  """(passed, scored) episodes of each domain; those without a score do not count."""
  counts: dict[str, tuple[int, int]] = {}
  for p in played:
    if p.trainable:
      passed, scored = counts.get(p.spec.task.domain, (0, 0))
      counts[p.spec.task.domain] = (passed + p.grade.passed, scored + 1)
  return counts


def balance_metrics(shares: Mapping[str, float]) -> dict[str, float]:
  """The least and the greatest share, and how many equal domains would be as uneven."""
  values = np.asarray(list(shares.values()))
  return {
    "balance/share_min": float(values.min()),
    "balance/share_max": float(values.max()),
    "balance/effective_domains": float(1 / np.sum(values**2)),
  }


def domains_metrics(seen: Mapping[str, Seen]) -> dict[str, float]:
  """Recent training pass rates over the domains seen so far: quantiles, and the mean of the worst.

  Not a curve a domain: with a hundred of them nobody reads those.
  """
  rates = sorted(s.slow[0] / s.slow[1] for s in seen.values() if s.slow[1] > 0)
  if len(seen) < 2 or not rates:
    return {}
  low, middle, high = np.quantile(rates, (0.1, 0.5, 0.9))
  return {
    "domains/seen": float(len(rates)),
    "domains/pass_worst": float(np.mean(rates[:WORST])),
    "domains/pass_q10": float(low),
    "domains/pass_q50": float(middle),
    "domains/pass_q90": float(high),
  }


def _group_metrics(scored: Sequence[Played]) -> dict[str, Any]:
  groups = by_group(scored)
  spreads = [np.ptp([p.grade.rewards[""] for p in members]) for members in groups.values()]
  solved = [np.mean([p.grade.passed for p in members]) for members in groups.values()]
  return {
    "groups/zero_std_frac": Mean.of(np.asarray([float(s <= 1e-6) for s in spreads])),
    "groups/solve_rate": Mean.of(np.asarray(solved, np.float64)),
  }


def sampling_metrics(sampled: Sampled, stale: int) -> dict[str, float]:
  """Groups dropped by reason where sampling is dynamic, and episodes dropped for their age."""
  metrics: dict[str, float] = {"rollout/stale": float(stale)} if stale else {}
  if sampled.dropped:
    metrics |= {f"groups/dropped_{reason}": float(n) for reason, n in sampled.dropped.items()}
    metrics |= {
      "groups/rounds": float(sampled.rounds),
      "groups/missing": float(sampled.missing),
    }
  return metrics


def batch_metrics(batch: Batch) -> dict[str, Any]:
  """Ranges of advantages and returns, and how much of the returns the critic explains."""
  advantages = np.concatenate(batch.advantages)
  metrics: dict[str, Any] = {
    "advantage/mean": Mean.of(advantages),
    "advantage/std": Std.of(advantages),
    "advantage/min": Min.of(advantages),
    "advantage/max": Max.of(advantages),
  }
  if batch.returns is not None and batch.old_values is not None:
    values, returns = np.concatenate(batch.old_values), np.concatenate(batch.returns)
    metrics["value/explained_variance"] = _explained(values, returns)
    metrics["value/return_mean"] = Mean.of(returns)
  if batch.entropy_coef is not None:
    metrics["policy/entropy_coef"] = batch.entropy_coef
  return metrics


_explained_variance = jax.jit(explained_variance)


def _explained(values: np.ndarray, returns: np.ndarray) -> float:
  """Padded to a power of two: each step has another number of tokens, and few programs do."""
  count = len(values)
  size = 1 << (count - 1).bit_length()
  padded = (np.pad(x, (0, size - count)) for x in (values, returns))
  return float(_explained_variance(*padded, np.arange(size) < count))


def kl_metric(trajectories: Sequence[Trajectory], reference: PerAction) -> Mean:
  """Mean KL(policy || reference) a token: k3 on sampled tokens, never negative, unbiased."""
  behavior = [t.behavior_logprobs[t.action_mask] for t in trajectories]
  gap = np.concatenate(behavior) - np.concatenate(reference)
  return Mean.of(np.expm1(-gap) + gap)


class Stopwatch:
  """Wall time of the phases of one step, and the work of the engine in it."""

  def __init__(self, stats: EngineStats):
    self._start = time.perf_counter()
    self._stats, self._before = stats, dataclasses.replace(stats)
    self._phases: dict[str, float] = {}

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Times a block."""
    start = time.perf_counter()
    yield
    self._phases[name] = time.perf_counter() - start

  @property
  def seconds(self) -> Mapping[str, float]:
    """Of each phase so far."""
    return self._phases

  def metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Times, rates and memory. Rates count the tokens that a user sees: sampled tokens a
    second of rollout, and tokens of whole trajectories a second of training. With kept
    histories, the share of the prompts' tokens that they have saved."""
    tokens = sum(len(t.tokens) for t in trajectories)
    train = self._phases["score"] + self._phases["train"]
    sampled = self._stats.sampled_tokens - self._before.sampled_tokens
    kept = self._stats.history_tokens - self._before.history_tokens
    prefilled = self._stats.prefill_tokens - self._before.prefill_tokens
    saved = {"perf/prefill_saved": kept / (kept + prefilled)} if kept else {}
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = {f"perf/time_{name}": seconds for name, seconds in self._phases.items()}
    return (
      times
      | saved
      | {
        "perf/time_total": time.perf_counter() - self._start,
        "perf/rollout_tokens_per_s": sampled / self._phases["rollout"],
        "perf/train_tokens_per_s": tokens / train,
        "perf/peak_memory_gb": peak_kib / 2**20,
      }
    )
