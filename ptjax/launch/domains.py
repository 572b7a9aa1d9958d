"""Lists the domains that a run can train on, shows their tasks, admits, plays or replays them."""

import argparse
import asyncio
import contextlib
import dataclasses
import fnmatch
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ptjax.launch import domains_play

if TYPE_CHECKING:
  from ptjax.domains.admission import Admission
  from ptjax.domains.domain import Domain
  from ptjax.envs.environment import Services

NAME = "domains"
HELP = "list, sample, admit, play or replay the domains that a run can train on"
EPILOG = """\
examples:
  python -m ptjax.launch domains
  python -m ptjax.launch domains 'reasoning/*sudoku*' --sample 2
  python -m ptjax.launch domains 'solids/*' --sample 1 --pictures drawn
  python -m ptjax.launch domains reasoning/maze@2 --play
  python -m ptjax.launch domains terminal/access_log --play --record played.jsonl
  python -m ptjax.launch domains --replay played.jsonl
  python -m ptjax.launch domains 'reasoning/*' --admit --json
  python -m ptjax.launch domains chess --module my_lab.chess --admit

exit status: 1 where --admit has found a fault, or --replay a difference.
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
  how.add_argument(
    "--replay", type=Path, metavar="FILE", help="play transcripts again, and compare what is shown"
  )
  parser.add_argument(
    "--pictures", type=Path, metavar="DIR", help="draw the right answers that --sample shows"
  )
  parser.add_argument("--record", type=Path, metavar="FILE", help="append what --play has played")
  parser.add_argument("--seed", type=int, default=0, help="of the first task")
  parser.add_argument("--split", choices=("train", "heldout"), default="train")
  parser.add_argument("--tasks", type=int, default=6, help="of each split, for --admit [6]")
  parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
  if args.sample is not None and args.sample < 1:
    raise ValueError(f"--sample {args.sample} must be at least 1")
  if args.tasks < 1:
    raise ValueError(f"--tasks {args.tasks} must be at least 1")
  if args.record and not args.play:
    raise ValueError("--record writes down what --play plays; add --play")
  if args.pictures and args.sample is None:
    raise ValueError("--pictures draws what --sample shows; add --sample 1")
  if args.replay:
    return asyncio.run(_replay(args.replay, args.names, args.module, args.json))
  builders = chosen(args.names, args.module)
  if args.admit:
    return asyncio.run(_admit(builders, range(args.seed, args.seed + args.tasks), args.json))
  if args.play:
    return asyncio.run(_play(_one(builders), args.seed, args.split, args.record))
  if args.sample is not None:
    seeds = range(args.seed, args.seed + args.sample)
    _sample(builders, seeds, args.split, args.json)
    if args.pictures:
      asyncio.run(_draw(builders, seeds, args.split, args.pictures))
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
async def _services(domains: "Iterable[Domain]") -> "AsyncGenerator[Services]":
  """Pools of sandboxes, one an image, only where one of them runs programs."""
  from ptjax.envs.environment import Services
  from sandbox_runner import Pool, PoolConfig
  from sandbox_runner.images import limits_of

  pools: dict[str, Pool] = {}
  async with contextlib.AsyncExitStack() as stack:
    for image in sorted({domain.image for domain in domains if domain.sandboxed}):
      config = (
        PoolConfig(size=2, image=image, limits=limits_of(image)) if image else PoolConfig(size=2)
      )
      pools[image] = await stack.enter_async_context(Pool(config))
    yield Services(pools.get(""), {image: pool for image, pool in pools.items() if image})


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
          "right": _right(domain, task),
        }
      )
  if as_json:
    print(json.dumps(shown, indent=2, ensure_ascii=False))
    return
  for item in shown:
    print(f"== {item['domain']}, seed {item['seed']}, {split}")
    for message in item["messages"]:
      print(f"[{message['role']}] {message['content']}")
    for turn in item["right"] if isinstance(item["right"], list) else [item["right"]]:
      print(f"[right] {turn}")
    print()


async def _draw(builders, seeds: range, split, directory: Path) -> None:
  """A PNG of each right answer of the domains that draw; says on stderr where they are."""
  domains = [domain for build in builders.values() if (domain := build()).picture is not None]
  if not domains:
    raise ValueError("--pictures: none of these domains draws its answers; 'solids/*' do")
  directory.mkdir(parents=True, exist_ok=True)
  async with _services(domains) as services:
    for domain in domains:
      for seed in seeds:
        task = domain.make_task(seed, split)
        path = directory / f"{domain.name.replace('/', '-')}-{seed}.png"
        path.write_bytes(await domain.picture(task, domain.oracle(task), services))
        print(f"picture  {path}", file=sys.stderr)


def _right(domain: "Domain", task) -> str | list[str]:
  """The right answer: a text, or that of each turn as a model of the usual format writes it."""
  from ptjax.envs.context import Episodic
  from ptjax.envs.scripted import say
  from ptjax.envs.tool_formats import FENCED

  answer = domain.oracle(task)
  tools = domain.play.tools if isinstance(domain.play, Episodic) else ()
  return answer if isinstance(answer, str) else say(answer, FENCED, [t.spec for t in tools])


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


async def _play(domain: "Domain", seed: int, split, record: Path | None) -> int:
  async with _services([domain]) as services:
    await domains_play.play(domain, domain.make_task(seed, split), services, record)
  return 0


async def _replay(path: Path, names: Iterable[str], module: str | None, as_json: bool) -> int:
  from ptjax.domains import catalog
  from ptjax.domains.replay import read_records

  records = read_records(path)
  if names:
    records = [r for r in records if any(fnmatch.fnmatch(r["domain"], name) for name in names)]
  if not records:
    raise ValueError(f"--replay {path}: no record of several turns, or none of the domains named")
  domains = {r["domain"]: catalog.builder(r["domain"], module)() for r in records}
  async with _services(domains.values()) as services:
    return await domains_play.replay(records, domains, services, as_json)
