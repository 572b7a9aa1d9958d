"""The suite that a domain passes before it may train anything.

The oracle answer earns full reward; empty, garbage and attack answers earn nothing on the
domain node; every score is finite and in [0, 1], and the same when graded again.
"""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence

from ptjax.core.types import Outcome
from ptjax.domains.domain import Domain, Grade, grade_response
from ptjax.envs.environment import Services, Split, Task

GARBAGE: tuple[str, ...] = ("", " \n", "asdf qwer", "```", "```python\n```", "\x00\ud800\U0001f600")
SPLITS: tuple[Split, ...] = ("train", "heldout")


@dataclasses.dataclass(frozen=True)
class Finding:
  """One broken rule: the task, the response and what was wrong with its grade."""

  split: Split
  seed: int
  response: str
  fault: str


async def admit(domain: Domain, seeds: Sequence[int], services: Services) -> list[Finding]:
  """Checks a domain on the tasks of `seeds` in both splits; admitted where nothing is found."""
  findings: list[Finding] = []
  for split in SPLITS:
    for seed in seeds:
      task = domain.make_task(seed, split)
      if task != domain.make_task(seed, split):
        findings.append(Finding(split, seed, "", "the same seed made two different tasks"))
      findings += await _check_oracle(domain, task, services)
      worthless = (*GARBAGE, *domain.attacks)
      checks = [_check_worthless(domain, task, response, services) for response in worthless]
      for found in await asyncio.gather(*checks):
        findings += found
  return findings


async def _check_oracle(domain: Domain, task: Task, services: Services) -> Iterable[Finding]:
  response = domain.oracle(task)
  first = await grade_response(domain, task, response, services)
  second = await grade_response(domain, task, response, services)
  faults = _faults_of_any(first)
  if first != second:
    faults.append(f"graded {first} and then {second}")
  if first.rewards.get("") != 1.0 or not first.passed:
    faults.append(f"the oracle earns {dict(first.rewards)}, passed={first.passed}")
  return [Finding(task.split, task.seed, response, fault) for fault in faults]


async def _check_worthless(
  domain: Domain, task: Task, response: str, services: Services
) -> Iterable[Finding]:
  grade = await grade_response(domain, task, response, services)
  faults = _faults_of_any(grade)
  if grade.rewards.get("domain", 0.0) != 0.0 or grade.passed:
    faults.append(f"worthless answer earns {dict(grade.rewards)}, passed={grade.passed}")
  return [Finding(task.split, task.seed, response, fault) for fault in faults]


def _faults_of_any(grade: Grade) -> list[str]:
  """What is wrong with a grade whatever was answered."""
  if grade.outcome is not Outcome.SCORED:
    return [f"no score: {grade.outcome}, {grade.detail}"]
  # Written so that a NaN is a fault too.
  bad = {path: value for path, value in grade.rewards.items() if not 0.0 <= value <= 1.0}
  return [f"out of [0, 1]: {bad}"] if bad else []
