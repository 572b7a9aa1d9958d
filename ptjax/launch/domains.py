"""Lists the domains that a run can train on, shows their tasks, admits them, or plays them."""

import argparse
import asyncio
import contextlib
import dataclasses
import fnmatch
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
  from ptjax.domains.admission import Admission
  from ptjax.domains.domain import Domain
  from ptjax.envs.environment import Services, Task

NAME = "domains"
HELP = "list, sample, admit or play the domains that a run can train on"
EPILOG = """\
examples:
  python -m ptjax.launch domains
  python -m ptjax.launch domains 'reasoning/*sudoku*' --sample 2
  python -m ptjax.launch domains reasoning/maze@2 --play
  python -m ptjax.launch domains 'reasoning/*' --admit --json
  python -m ptjax.launch domains chess --module my_lab.chess --admit

exit status: 1 where --admit has found a fault.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "names", nargs="*", metavar="NAME", help="a name, NAME@LEVEL or a pattern; all without one"
  )
  parser.add_argument("--module", help="a module of yours that offers them in DOMAINS")
  how = parser.add_mutually_exclusive_group()
  how.add_argument("--sample", type=int, metavar="N", help="show N tasks with a right answer each")
  how.add_argument("--admit", action="store_true", help="the suite before training")
  how.add_argument("--play", action="store_true", help="answer a task yourself, and be graded")
  parser.add_argument("--seed", type=int, default=0, help="of the first task")
  parser.add_argument("--split", choices=("train", "heldout"), default="train")
  parser.add_argument("--tasks", type=int, default=6, help="of each split, for --admit [6]")
  parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
  if args.sample is not None and args.sample < 1:
    raise ValueError(f"--sample {args.sample} must be at least 1")
  if args.tasks < 1:
    raise ValueError(f"--tasks {args.tasks} must be at least 1")
  builders = chosen(args.names, args.module)
  if args.admit:
    return asyncio.run(_admit(builders, range(args.seed, args.seed + args.tasks), args.json))
  if args.play:
    return asyncio.run(_play(_one(builders), args.seed, args.split))
  if args.sample is not None:
    _sample(builders, range(args.seed, args.seed + args.sample), args.split, args.json)
    return 0
  _list(builders, args.json)
  return 0


def chosen(names: Iterable[str], module: str | None) -> "dict[str, Callable[[], Domain]]":
  """Builders by name.

  Raises:
    ValueError: a name that is none, a pattern that fits none.
  """
  from ptjax.domains import catalog

  offered = catalog.offered_by(module)
  found: dict[str, Any] = {}
  for name in names or ["*"]:
    if any(c in name for c in "*?["):
      fitting = fnmatch.filter(offered, name)
      if not fitting:
        raise ValueError(f"no domain fits {name!r}; `domains` without a name lists them")
    else:
      fitting = [name]
    found |= {n: catalog.builder(n, module) for n in fitting}
  return found


def _one(builders: "dict[str, Callable[[], Domain]]") -> "Domain":
  if len(builders) != 1:
    raise ValueError(f"--play wants one domain, not {len(builders)}; name it")
  return next(iter(builders.values()))()


@contextlib.asynccontextmanager
async def _services(domains: "Iterable[Domain]") -> "AsyncIterator[Services]":
  """A pool of sandboxes only where one of them runs programs."""
  from ptjax.envs.environment import Services
  from sandbox_runner import Pool, PoolConfig

  if not any(domain.sandboxed for domain in domains):
    yield Services()
    return
  async with Pool(PoolConfig(size=2)) as pool:
    yield Services(pool)


def _list(builders, as_json: bool) -> None:
  rows = []
  for name, build in builders.items():
    domain = build()
    rows.append(
      {key: getattr(domain, key) for key in ("family", "license", "source", "sandboxed")}
      | {"name": name}
    )
  if as_json:
    print(json.dumps(rows, indent=2))
    return
  table = Table(Column("domain", no_wrap=True), "family", "licence", "source", "sandbox")
  for row in rows:
    sandbox = "yes" if row["sandboxed"] else ""
    table.add_row(row["name"], row["family"], row["license"], row["source"], sandbox)
  Console().print(table)
  print(f"{len(rows)} domains")


def _sample(builders, seeds: range, split, as_json: bool) -> None:
  shown: list[dict[str, Any]] = []
  for name, build in builders.items():
    domain = build()
    for seed in seeds:
      task = domain.make_task(seed, split)
      shown.append(
        {
          "domain": name,
          "seed": seed,
          "split": split,
          "messages": [dict(m) for m in task.messages],
          "right": domain.oracle(task),
        }
      )
  if as_json:
    print(json.dumps(shown, indent=2, ensure_ascii=False))
    return
  for item in shown:
    print(f"== {item['domain']}, seed {item['seed']}, {split}")
    for message in item["messages"]:
      print(f"[{message['role']}] {message['content']}")
    print(f"[right] {item['right']}\n")


async def _admit(builders, seeds: range, as_json: bool) -> int:
  from ptjax.domains.admission import examine

  domains = [build() for build in builders.values()]
  async with _services(domains) as services:
    reports = [await examine(domain, seeds, services) for domain in domains]
  if as_json:
    rows = [dataclasses.asdict(r) | {"admitted": r.admitted} for r in reports]
    print(json.dumps(rows, indent=2, default=repr))
  else:
    _print_admissions(reports)
  return 0 if all(report.admitted for report in reports) else 1


def _print_admissions(reports: "list[Admission]") -> None:
  name, verdict = Column("domain", no_wrap=True), Column("", no_wrap=True)
  table = Table(name, verdict, "guessed", "prompt", "make ms", "grade ms", "first fault")
  for r in reports:
    table.add_row(
      r.domain,
      "[green]admitted" if r.admitted else "[red]refused",
      f"{r.guessed:.0%}",
      f"{r.longest_prompt:,}",
      f"{r.make_s * 1e3:.1f}",
      f"{r.grade_s * 1e3:.1f}",
      Text(_first_fault(r)),
    )
  Console().print(table)
  admitted = sum(r.admitted for r in reports)
  print(f"{admitted} of {len(reports)} domains admitted, on {reports[0].tasks} tasks each")


def _first_fault(report: "Admission") -> str:
  if report.admitted:
    return ""
  first = report.findings[0]
  return f"{first.split} task {first.seed}, {str(first.answer)[:40]!r}: {first.fault}"


async def _play(domain: "Domain", seed: int, split) -> int:
  from ptjax.domains.domain import grade_response

  task: Task = domain.make_task(seed, split)
  for message in task.messages:
    print(f"[{message['role']}] {message['content']}")
  print("[your answer, then end of input (Ctrl-D)]", flush=True)
  response = (await asyncio.to_thread(sys.stdin.read)).removesuffix("\n")
  async with _services([domain]) as services:
    grade = await grade_response(domain, task, response, services)
  for path, value in grade.rewards.items():
    print(f"{path or 'reward':24} {value:.3f}")
  print(f"{grade.outcome}, {'passed' if grade.passed else 'not passed'} {grade.detail}".rstrip())
  return 0
