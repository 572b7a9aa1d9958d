"""Transcripts: what an episode of several turns said and was shown, and whether it is so again.

A record holds what it takes to play the episode once more, in a fresh sandbox: the task by its
seed, the text of each turn, and how calls are written in it. Runs write one with each sample
(`trajectories.jsonl`), and people with `domains --play --record`.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptjax.core.types import FinishReason
from ptjax.domains.domain import Domain, Grade, grade
from ptjax.envs.context import Episodic
from ptjax.envs.environment import Ending, Episode, Services, Task
from ptjax.envs.scripted import ScriptedPolicy
from ptjax.envs.tool_formats import FORMATS

_TEXTS = ("responses", "observations")
_CUT_SHORT = (Ending.TOKENS, Ending.LENGTH, Ending.WALL, Ending.LOST)
"""Endings that the tokenizer, the clock or the machinery decided: there may be more this time."""


@dataclasses.dataclass(frozen=True)
class Replayed:
  """An episode played again.

  Attributes:
    episode: as it was this time.
    grade: its grade.
    difference: the first observation that is another, in words; "" where all are the same.
  """

  episode: Episode
  grade: Grade
  difference: str


def recorded(task: Task, episode: Episode) -> dict[str, Any]:
  """The record of an episode, as plain JSON values."""
  return {
    "domain": task.domain,
    "seed": task.seed,
    "split": task.split,
    "tool_format": episode.tool_format,
    "reasoning_open": episode.reasoning_open,
    "responses": list(episode.responses),
    "observations": list(episode.observations),
    "finish_reason": str(episode.finish_reason),
    "ending": str(episode.ending),
  }


def read_records(path: Path) -> list[dict[str, Any]]:
  """The records of episodes of several turns in a JSONL file; other lines are left out.

  Raises:
    ValueError: a line that is no JSON object, or a record with something missing.
  """
  found = []
  for number, line in enumerate(path.read_text().splitlines(), 1):
    try:
      record = json.loads(line)
    except json.JSONDecodeError as error:
      raise ValueError(f"{path}, line {number}: no JSON: {error}") from error
    if not isinstance(record, dict):
      raise ValueError(f"{path}, line {number}: a {type(record).__name__}, not an object")
    if "responses" in record:
      _check(record, f"{path}, line {number}")
      found.append(record)
  return found


def _check(record: Mapping[str, Any], where: str) -> None:
  wanted = ("domain", "seed", "split", "tool_format", *_TEXTS, "finish_reason", "ending")
  if missing := [name for name in wanted if name not in record]:
    raise ValueError(f"{where}: the record has no {missing[0]!r}")
  if record["tool_format"] not in FORMATS:
    known = ", ".join(FORMATS)
    raise ValueError(f"{where}: tool_format {record['tool_format']!r} is unknown; known: {known}")
  for name in _TEXTS:
    if not all(isinstance(text, str) for text in record[name]):
      raise ValueError(f"{where}: {name} must be texts")


async def replay(domain: Domain, record: Mapping[str, Any], services: Services) -> Replayed:
  """Plays a record once more, and compares what is shown with what was.

  Raises:
    ValueError: a domain whose episodes have one turn.
  """
  if not isinstance(domain.play, Episodic):
    raise ValueError(f"episodes of domain {domain.name} have one turn; there is nothing to replay")
  task = domain.make_task(record["seed"], record["split"])
  think = "<think>" if record.get("reasoning_open") else ""
  turns = [think + text for text in record["responses"]]
  cut = record["finish_reason"] == FinishReason.LENGTH
  policy = ScriptedPolicy(turns, FORMATS[record["tool_format"]], cut=cut)
  # Tokens are counted by another tokenizer here: how many turns there were says the record.
  budget = dataclasses.replace(domain.play.budget, tokens=None)
  episode = await dataclasses.replace(domain.play, budget=budget)(task, policy, services)
  graded = await grade(domain, task, episode, services)
  return Replayed(episode, graded, _difference(record, episode))


def _difference(record: Mapping[str, Any], episode: Episode) -> str:
  if episode.ending in (Ending.WALL, Ending.LOST):
    return f"it could not be played to its end: {episode.detail}"
  then, now = record["observations"], episode.observations
  for number, (before, after) in enumerate(zip(then, now, strict=False)):
    if before != after:
      at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), -1)
      at = min(len(before), len(after)) if at < 0 else at
      was, is_now = before[at : at + 40], after[at : at + 40]
      return f"observation {number} differs at character {at}: {was!r} was, {is_now!r} is"
  if len(now) < len(then) or (len(now) > len(then) and record["ending"] not in _CUT_SHORT):
    return f"{len(then)} observations were, {len(now)} are"
  return ""
