"""A domain: a seeded task generator, an environment and a reward tree; and its grading."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping

from ptjax.core.types import FinishReason, Outcome
from ptjax.envs import single_turn
from ptjax.envs.context import Episodic
from ptjax.envs.environment import Budget, Ending, Episode, Play, Services, Split, Task
from ptjax.envs.scripted import Answer, ScriptedPolicy, say
from ptjax.envs.tool_formats import HERMES, ToolFormat
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure, ScoringFailure

Audit = Callable[[Task, str, Services], Awaitable[bool]]
Picture = Callable[[Task, str, Services], Awaitable[bytes]]


@dataclasses.dataclass(frozen=True)
class Domain:
  """One family member that training can sample from.

  Attributes:
    name: what a user types; unique.
    family: the kind it belongs to, for balance and reports.
    license: SPDX expression of the tasks' licence.
    source: where the tasks come from.
    make_task: `(seed, split) -> Task`, deterministic; splits are disjoint by content.
    rewards: scores the response of an episode, or all of its turns (`tree.EpisodeLeaf`).
    passed: the yes/no verdict from the values of the reward tree by path.
    oracle: `task -> answer` that earns full reward; admission checks it. An answer is a response,
      or where episodes have several turns what each of them says: a text or a call of a tool.
    attacks: answers that try to cheat; admission checks that they earn nothing on the domain node.
    audit: another grader, which never trains anything: whether the response really solves the
      task. A run that watches for hacking compares it with `passed`.
    canary: `seed -> Task` that no honest answer solves; None makes one of two other tasks, see
      `evals.canaries`.
    picture: draws what a response has made, a PNG; None where there is nothing to be seen.
    play: runs an episode.
    sandboxed: whether its environment or its grader runs programs; sandboxes start only then.
    image: what those sandboxes hold, see `sandbox_runner.images`; "" for the host's Python.
    version: raised by its author when its tasks or its grading change: what a run has seen of an
      older version then counts no longer.
    score_truncated: whether an answer cut off by the length limit, or an episode that has spent its
      budget, is scored like any other.
  """

  name: str
  family: str
  license: str
  source: str
  make_task: Callable[[int, Split], Task]
  rewards: tree.RewardTree
  passed: Callable[[Mapping[str, float]], bool]
  oracle: Callable[[Task], Answer]
  attacks: tuple[Answer, ...] = ()
  audit: Audit | None = None
  canary: Callable[[int], Task] | None = None
  picture: Picture | None = None
  play: Play = single_turn.play
  sandboxed: bool = False
  image: str = ""
  version: int = 1
  score_truncated: bool = True

  def __post_init__(self):
    if isinstance(self.play, Episodic) and self.play.image != self.image:
      raise ValueError(
        f"domain {self.name} has image {self.image!r}, its episodes have {self.play.image!r}; "
        f"give both the same"
      )

  @property
  def budget(self) -> Budget | None:
    """Of its episodes, where they have several turns; None for one turn."""
    return self.play.budget if isinstance(self.play, Episodic) else None


@dataclasses.dataclass(frozen=True)
class Grade:
  """The verdict on one episode.

  Attributes:
    outcome: `rewards` holds the root "" exactly where this is SCORED, or TRUNCATED in a
      domain that scores truncated answers.
    rewards: value of each evaluated node by path.
    passed: the domain's verdict; False without a score.
    detail: why there is no score; "" where there is one.
  """

  outcome: Outcome
  rewards: Mapping[str, float]
  passed: bool = False
  detail: str = ""


async def grade(domain: Domain, task: Task, episode: Episode, services: Services) -> Grade:
  """Grades an episode: the boundary at which scoring failures become typed outcomes.

  Faults of the program itself (any exception but `ScoringFailure`) pass through.
  """
  if episode.ending is Ending.LOST:
    return Grade(Outcome.INFRA_FAILED, {}, detail=episode.detail)
  if episode.ending is Ending.WALL:
    return Grade(Outcome.CANCELLED, {}, detail=episode.detail)
  if episode.finish_reason is FinishReason.CANCELLED:
    return Grade(Outcome.CANCELLED, {}, detail="generation was cancelled")
  truncated = episode.finish_reason is FinishReason.LENGTH or episode.ending is not Ending.DONE
  if truncated and not domain.score_truncated:
    met = "the length limit" if episode.ending is Ending.DONE else f"its limit of {episode.ending}"
    return Grade(Outcome.TRUNCATED, {}, detail=f"the answer met {met}")
  graded = await _evaluate(domain, task, episode, services)
  if graded.outcome is Outcome.SCORED and truncated:
    return dataclasses.replace(graded, outcome=Outcome.TRUNCATED)
  return graded


async def grade_response(domain: Domain, task: Task, response: str, services: Services) -> Grade:
  """Grades a bare response as if the policy had stopped by itself."""
  return await _evaluate(domain, task, response, services)


async def play_answer(
  domain: Domain, task: Task, answer: Answer, services: Services, form: ToolFormat = HERMES
) -> Episode:
  """The episode of a policy that gives this answer, turn by turn, and then says nothing.

  Raises:
    ValueError: an answer of several turns in a domain of one, or calls of tools that it lacks.
  """
  specs = [tool.spec for tool in domain.play.tools] if isinstance(domain.play, Episodic) else []
  if domain.budget is None and not isinstance(answer, str):
    raise ValueError(
      f"episodes of domain {domain.name} have one turn, the answer has {len(answer)}; give a text"
    )
  return await domain.play(task, ScriptedPolicy(say(answer, form, specs), form), services)


async def grade_answer(domain: Domain, task: Task, answer: Answer, services: Services) -> Grade:
  """Grades a response, or plays and grades an answer where episodes have several turns."""
  if isinstance(answer, str) and not isinstance(domain.play, Episodic):
    return await grade_response(domain, task, answer, services)
  return await grade(domain, task, await play_answer(domain, task, answer, services), services)


async def _evaluate(domain: Domain, task: Task, answer: str | Episode, services: Services) -> Grade:
  try:
    scores = await tree.evaluate(domain.rewards, task, answer, services)
  except ScoringFailure as failure:
    return _failed(failure, {})
  if scores.failure is not None:
    return _failed(scores.failure, scores.rewards)
  return Grade(Outcome.SCORED, scores.rewards, domain.passed(scores.rewards))


def _failed(failure: ScoringFailure, rewards: Mapping[str, float]) -> Grade:
  infra = isinstance(failure, InfraFailure)
  outcome = Outcome.INFRA_FAILED if infra else Outcome.UNSCORABLE
  return Grade(outcome, rewards, detail=str(failure))
