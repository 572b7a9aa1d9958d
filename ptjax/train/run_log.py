"""What a run writes beside its metrics, and what a resumed run forgets of it."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.core.metrics import append_jsonl, drop_from_step, write_jsonl
from ptjax.domains.replay import recorded
from ptjax.evals.heldout import PassRate
from ptjax.experience.collect import Played


class RunLog:
  """The files of a run that grow, but its metrics."""

  def __init__(self, workdir: pathlib.Path, next_step: int):
    """Forgets what was written after the checkpoint that the run goes on from.

    The evaluation before training belongs to no step and is kept.
    """
    self._trajectories = workdir / "trajectories.jsonl"
    self._evals = workdir / "eval.jsonl"
    self._costs = workdir / "costs.jsonl"
    self._sensors = workdir / "hacking.jsonl"
    self._reviews = workdir / "review.jsonl"
    self._conflicts = workdir / "conflict.jsonl"
    for path in (self._costs, self._sensors, self._reviews, self._conflicts):
      drop_from_step(path, next_step)
    self._decisions = workdir / "decisions.jsonl"
    # What was decided before the first step left is decided again, where the kill came soon after.
    self._decided = drop_from_step(self._decisions, next_step)
    self._done = {record["when"] for record in drop_from_step(self._evals, next_step)}
    # An evaluation writes its samples first: where a kill came in between, it runs again.
    samples = drop_from_step(self._trajectories, next_step)
    written = [r for r in samples if r["phase"] == "train" or r["phase"] in self._done]
    if len(written) < len(samples):
      write_jsonl(self._trajectories, written)

  def has(self, when: str) -> bool:
    """Whether an evaluation is already written."""
    return when in self._done

  def samples(self, phase: str, step: int, played: Sequence[Played]) -> None:
    append_jsonl(self._trajectories, (_sample(phase, step, p) for p in played))

  def evaluation(self, when: str, step: int, rates: Sequence[PassRate]) -> None:
    append_jsonl(
      self._evals,
      (
        {"when": when, "step": step, "domain": r.domain, "passed": r.passed, "total": r.total}
        for r in rates
        if r.domain != "all"
      ),
    )

  def costs(self, record: Mapping[str, Any]) -> None:
    """What a step has cost, as `train.costs` records it. What a killed run lost is not counted."""
    append_jsonl(self._costs, [record])

  def conflict(self, step: int, cosines: Mapping[tuple[str, str], float]) -> None:
    """Cosines of the gradients of pairs of domains, the least first; nothing for none."""
    pairs = [[*pair, value] for pair, value in sorted(cosines.items(), key=lambda item: item[1])]
    if pairs:
      append_jsonl(self._conflicts, [{"step": step, "cosines": pairs}])

  def sensors(self, record: Mapping[str, Any]) -> None:
    """What the sensors of reward hacking have measured of a domain."""
    append_jsonl(self._sensors, [record])

  def review(
    self, key: str, step: int, why: str, oddness: float, played: Played, license_: str
  ) -> None:
    """An answer that a person should judge."""
    task = played.spec.task
    record = {
      "id": key,
      "step": step,
      "why": why,
      "oddness": oddness,
      "domain": task.domain,
      "license": license_,
      "messages": [dict(message) for message in task.messages],
      "response": played.episode.response,
      "reward": played.grade.rewards.get(""),
    }
    append_jsonl(self._reviews, [record])

  def decision(self, step: int, kind: str, domain: str, evidence: Mapping[str, Any]) -> None:
    """What the run has decided about a domain after a step, and why."""
    record = {"step": step, "kind": kind, "domain": domain, "evidence": dict(evidence)}
    record = json.loads(json.dumps(record))  # as a resumed run reads it
    if record not in self._decided:
      append_jsonl(self._decisions, [record])


def _sample(phase: str, step: int, played: Played) -> dict[str, Any]:
  task, grade = played.spec.task, played.grade
  record = {
    "phase": phase,
    "step": step,
    "domain": task.domain,
    "prompt": "\n\n".join(message["content"] for message in task.messages),
    "response": played.episode.response,
    "reward": grade.rewards.get(""),
    "rewards": dict(grade.rewards),
    "passed": grade.passed,
    "outcome": str(grade.outcome),
    "finish_reason": str(played.episode.finish_reason),
  }
  # What `domains --replay` reads.
  return record | recorded(task, played.episode) if played.several_turns else record
