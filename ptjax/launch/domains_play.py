"""`domains --play` and `--replay`: a person in place of the policy, and transcripts once more."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from ptjax.domains.domain import Domain, Grade
  from ptjax.envs.environment import Episode, Services, Task

END = "."
"""A line of this ends a turn."""


async def play(domain: "Domain", task: "Task", services: "Services", record: Path | None) -> None:
  """Asks for the answer, or for each turn of it, and prints the grade."""
  from ptjax.core.metrics import append_jsonl
  from ptjax.domains.domain import grade, grade_response
  from ptjax.domains.replay import recorded

  if domain.budget is not None:
    episode = await _play_turns(domain, task, services)
    if record is not None:
      append_jsonl(record, [recorded(task, episode)])
    print(f"\n[the episode ended: {episode.ending} {episode.detail}".rstrip() + "]")
    _print_grade(await grade(domain, task, episode, services))
    return
  if record is not None:
    raise ValueError(f"--record: episodes of domain {domain.name} have one turn; leave it out")
  for message in task.messages:
    print(f"[{message['role']}] {message['content']}")
  print("[your answer, then end of input (Ctrl-D)]", flush=True)
  response = (await asyncio.to_thread(sys.stdin.read)).removesuffix("\n")
  _print_grade(await grade_response(domain, task, response, services))


async def _play_turns(domain: "Domain", task: "Task", services: "Services") -> "Episode":
  from ptjax.envs.scripted import LivePolicy

  seen = 0  # tokens that are on the screen

  async def say(context) -> str:
    nonlocal seen
    tokenizer = policy.template.tokenizer
    print(tokenizer.decode(context[seen:]), flush=True)
    print(f"[your turn, then a line with {END!r} alone; an empty turn ends it]", flush=True)
    text = await asyncio.to_thread(_read_turn)
    seen = len(context) + len(tokenizer.encode(text)) + 1
    return text

  policy = LivePolicy(say)
  return await domain.play(task, policy, services)


def _read_turn() -> str:
  lines = []
  while (line := sys.stdin.readline()) and line.rstrip("\n") != END:
    lines.append(line)
  return "".join(lines).removesuffix("\n")


def _print_grade(grade: "Grade") -> None:
  for path, value in grade.rewards.items():
    print(f"{path or 'reward':24} {value:.3f}")
  print(f"{grade.outcome}, {'passed' if grade.passed else 'not passed'} {grade.detail}".rstrip())


async def replay(
  records: list[dict[str, Any]],
  domains: "dict[str, Domain]",
  services: "Services",
  as_json: bool,
  show: Callable[[str], None] = print,
) -> int:
  """Plays records again; 1 where one is shown something else, or gets another verdict."""
  from ptjax.domains import replay as replays

  rows = []
  for number, record in enumerate(records):
    done = await replays.replay(domains[record["domain"]], record, services)
    row = {
      "record": number,
      "domain": record["domain"],
      "seed": record["seed"],
      "difference": done.difference,
      "passed": done.grade.passed,
    }
    rows.append(row)
    if not as_json:
      how = done.difference or "shown the same again"
      verdict = "passed" if done.grade.passed else "not passed"
      show(f"record {number}, {record['domain']}, seed {record['seed']}: {how}; {verdict}")
  if as_json:
    show(json.dumps(rows, indent=2))
  return int(any(row["difference"] for row in rows))
