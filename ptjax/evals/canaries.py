"""Tasks that cannot be solved honestly: an answer that passes one games the grader, or guesses."""

import asyncio
import dataclasses
from collections.abc import Sequence

from ptjax.core.stats import wilson_interval
from ptjax.domains.domain import Domain, grade_answer
from ptjax.envs.environment import Services, Task
from ptjax.experience.mixture import task_seed

CANARY_SEED = 77_003
GUESSES = 12
_APART = 500_000  # between the numbers of the two tasks that make a canary


def has_canaries(domain: Domain) -> bool:
  """Whether canaries of it can be made: its own, or of tasks of one turn."""
  return domain.canary is not None or domain.budget is None


def canary(domain: Domain, number: int) -> Task:
  """The domain's own, or one task's question with the expected answer of another.

  Whoever answers the question is right only where both have the same answer, which `guess_rate`
  measures; what passes whatever is asked passes here too.
  """
  seed = task_seed(CANARY_SEED, domain.name, number)
  if domain.canary is not None:
    return domain.canary(seed)
  asked = domain.make_task(seed, "train")
  graded = domain.make_task(task_seed(CANARY_SEED, domain.name, number + _APART), "train")
  return dataclasses.replace(asked, data=graded.data)


async def guess_rate(domain: Domain, services: Services) -> float:
  """Upper end of the Wilson interval of the share of canaries that right answers solve."""
  if domain.canary is not None:
    return 0.0
  tasks = [canary(domain, _APART // 2 + number) for number in range(GUESSES)]
  honest = [domain.oracle(domain.make_task(task.seed, "train")) for task in tasks]
  grades = await asyncio.gather(
    *(grade_answer(domain, t, a, services) for t, a in zip(tasks, honest, strict=True))
  )
  return wilson_interval(sum(g.passed for g in grades), GUESSES)[1]


async def guess_rates(domains: Sequence[Domain], services: Services) -> dict[str, float]:
  """`guess_rate` of each domain that has canaries, by name."""
  names = [d for d in domains if has_canaries(d)]
  rates = await asyncio.gather(*(guess_rate(domain, services) for domain in names))
  return {domain.name: rate for domain, rate in zip(names, rates, strict=True)}
