"""The suite that a domain passes before it may train anything.

The oracle answer earns full reward; empty, garbage and attack answers earn nothing on the
domain node; every score is finite and in [0, 1], and the same when graded again; right answers to
other tasks seldom solve one, for else a policy could learn that answer in place of the task.
Where episodes have several turns each answer is played, and the oracle's twice: it is shown the
same again, for else no transcript could be replayed.
"""

import asyncio
import dataclasses
import time
from collections.abc import Iterable, Sequence

from ptjax.core.types import Outcome
from ptjax.domains.domain import Domain, Grade, grade, grade_answer, play_answer
from ptjax.envs.environment import Services, Split, Task
from ptjax.envs.scripted import Answer

GARBAGE: tuple[str, ...] = ("", " \n", "asdf qwer", "```", "```python\n```", "\x00\ud800\U0001f600")
SPLITS: tuple[Split, ...] = ("train", "heldout")
MOST_BY_GUESS = 0.8  # a toss of a coin, and the luck of few tasks


@dataclasses.dataclass(frozen=True)
class Finding:
  """One broken rule: the task, the answer and what was wrong with its grade."""

  split: Split
  seed: int
  answer: Answer
  fault: str


@dataclasses.dataclass(frozen=True)
class Admission:
  """What the suite has seen of a domain.

  Attributes:
    domain: its name.
    findings: broken rules; admitted where there is none.
    tasks: different ones, in both splits together.
    guessed: share of the pairs of different tasks where the right answer to one solves the other.
    longest_prompt: characters of its messages.
    make_s, grade_s: mean seconds to make a task, to grade an answer.
  """

  domain: str
  findings: tuple[Finding, ...]
  tasks: int
  guessed: float
  longest_prompt: int
  make_s: float
  grade_s: float

  @property
  def admitted(self) -> bool:
    return not self.findings


async def examine(domain: Domain, seeds: Sequence[int], services: Services) -> Admission:
  """Runs the suite on the tasks of `seeds` in both splits, and measures them."""
  begin = time.perf_counter()
  tasks = _different(domain.make_task(seed, split) for split in SPLITS for seed in seeds)
  made = time.perf_counter()
  answers = [domain.oracle(task) for task in tasks]
  pairs = [
    (task, answer)
    for i, task in enumerate(tasks)
    for j, answer in enumerate(answers)
    if i != j and task.messages != tasks[j].messages
  ]
  start = time.perf_counter()
  grades = await asyncio.gather(*(grade_answer(domain, t, a, services) for t, a in pairs))
  seconds = time.perf_counter() - start
  guessed = sum(g.passed for g in grades) / max(len(pairs), 1)
  findings = await admit(domain, seeds, services)
  if guessed > MOST_BY_GUESS:
    fault = f"a right answer to one task solves another in {guessed:.0%} of {len(pairs)} pairs"
    findings.append(Finding("train", seeds[0], answers[0], fault))
  return Admission(
    domain=domain.name,
    findings=tuple(findings),
    tasks=len(tasks),
    guessed=guessed,
    longest_prompt=max(sum(len(m["content"]) for m in task.messages) for task in tasks),
    make_s=(made - begin) / (len(seeds) * len(SPLITS)),
    grade_s=seconds / max(len(pairs), 1),
  )


async def admit(domain: Domain, seeds: Sequence[int], services: Services) -> list[Finding]:
  """Checks a domain on the tasks of `seeds` in both splits; admitted where nothing is found."""
  findings: list[Finding] = []
  made = [
    (domain.make_task(s, split), domain.make_task(s, split)) for split in SPLITS for s in seeds
  ]
  for task, again in made:
    if task.domain != domain.name:
      fault = f"the task says it is of domain {task.domain!r}, which a run would not find"
      findings.append(Finding(task.split, task.seed, "", fault))
    if task != again:
      fault = "the same seed made two different tasks"
      findings.append(Finding(task.split, task.seed, "", fault))
  for task in _different(task for task, _ in made):
    findings += await _check_oracle(domain, task, services)
    worthless = (*GARBAGE, *domain.attacks)
    checks = [_check_worthless(domain, task, answer, services) for answer in worthless]
    for found in await asyncio.gather(*checks):
      findings += found
  return findings


def _different(tasks: Iterable[Task]) -> list[Task]:
  """Of those that ask the same, the first: a domain may have few."""
  found: list[Task] = []
  for task in tasks:
    if all((task.messages, task.data) != (t.messages, t.data) for t in found):
      found.append(task)
  return found


async def _check_oracle(domain: Domain, task: Task, services: Services) -> Iterable[Finding]:
  answer, faults = domain.oracle(task), []
  if domain.budget is None:
    first = await grade_answer(domain, task, answer, services)
    second = await grade_answer(domain, task, answer, services)
  else:
    episode = await play_answer(domain, task, answer, services)
    again = await play_answer(domain, task, answer, services)
    first = await grade(domain, task, episode, services)
    second = await grade(domain, task, again, services)
    if episode.observations != again.observations:
      faults.append(f"shows {episode.observations} and then {again.observations}")
  faults += _faults_of_any(first)
  if first != second:
    faults.append(f"graded {first} and then {second}")
  if first.rewards.get("") != 1.0 or not first.passed:
    faults.append(f"the oracle earns {dict(first.rewards)}, passed={first.passed}")
  return [Finding(task.split, task.seed, answer, fault) for fault in faults]


async def _check_worthless(
  domain: Domain, task: Task, answer: Answer, services: Services
) -> Iterable[Finding]:
  graded = await grade_answer(domain, task, answer, services)
  # An attack of several turns may spend its budget.
  faults = _faults_of_any(graded, may_be_cut=domain.score_truncated)
  if graded.rewards.get("domain", 0.0) != 0.0 or graded.passed:
    faults.append(f"worthless answer earns {dict(graded.rewards)}, passed={graded.passed}")
  return [Finding(task.split, task.seed, answer, fault) for fault in faults]


def _faults_of_any(grade: Grade, *, may_be_cut: bool = False) -> list[str]:
  """What is wrong with a grade whatever was answered."""
  scored = (Outcome.SCORED, Outcome.TRUNCATED) if may_be_cut else (Outcome.SCORED,)
  if grade.outcome not in scored:
    return [f"no score: {grade.outcome}, {grade.detail}"]
  # Written so that a NaN is a fault too.
  bad = {path: value for path, value in grade.rewards.items() if not 0.0 <= value <= 1.0}
  return [f"out of [0, 1]: {bad}"] if bad else []
