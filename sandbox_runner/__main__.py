"""Runs programs in sandboxes, and looks after what does.

  python -m sandbox_runner run -- python3 -c 'print(1)'
  python -m sandbox_runner images build code
  python -m sandbox_runner bench --backend bwrap --seconds 60
  python -m sandbox_runner posture
  python -m sandbox_runner audit verify audit.jsonl

Exit status: 2 for input that is wrong or a machine without a backend, with one line on stderr that
says what; else see the help of each command.
"""

import argparse
import asyncio
import logging
import math
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import NoReturn

from sandbox_runner import bench
from sandbox_runner.audit_chain import START, verify
from sandbox_runner.detect import detect_backends
from sandbox_runner.images import image_names, limits_of
from sandbox_runner.images.command import add_images, run_images
from sandbox_runner.journal import reap
from sandbox_runner.pool import Pool, PoolConfig
from sandbox_runner.posture import CHECKS
from sandbox_runner.types import Limits, Request

RUN_HELP = "run one program; exit status its own, 128 + signal, or 125 for any other outcome"
BENCH_HELP = "executions a second and latencies of a Python snippet; exit status 1 if things leak"
POSTURE_HELP = "what a program finds in a sandbox, for each backend; exit status 1 if a check fails"
DOCTOR_HELP = "say which backends work here, and how to get the others; exit status 1 if none does"
REAP_HELP = "remove what killed runners have left, and list it"
AUDIT_HELP = "look after an audit log"
VERIFY_HELP = "check the chain of a log; exit status 1 and the first bad line if it is broken"

LIMITS = {
  "wall_s": "seconds from start to end",
  "cpu_s": "seconds of processor time",
  "memory_mb": "MiB of memory, files in memory included",
  "pids": "processes and threads at a time",
  "disk_mb": "MiB in all writable places",
  "output_bytes": "bytes of each of stdout and stderr",
}


class Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    self.exit(2, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
  top = Parser(
    prog="python -m sandbox_runner",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND")

  run = verbs.add_parser("run", help=RUN_HELP, description=RUN_HELP)
  add_backend(run)
  run.add_argument(
    *("--file", "-f"), action="append", default=[], help="file to put into the work directory"
  )
  run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable")
  run.add_argument("--deadline-s", type=float, help="seconds for all, the start included [none]")
  run.add_argument("--audit", metavar="FILE", help="audit log to append to [none]")
  for field in fields(Limits):
    if field.name in LIMITS:  # the others are for files that are read back, which this does not
      text = f"{LIMITS[field.name]} [{field.default}, or what suits the image]"
      option = "--" + field.name.replace("_", "-")
      run.add_argument(option, type=field.type, metavar="N", help=text)
  run.add_argument("argv", nargs="+", help="the program and its arguments, after --")

  measure = verbs.add_parser("bench", help=BENCH_HELP, description=BENCH_HELP)
  add_backend(measure)
  measure.add_argument("--snippet", default="print(1 + 1)", help="Python code [print(1 + 1)]")
  measure.add_argument("--size", type=int, default=2, help="sandboxes, and runs at a time [2]")
  measure.add_argument(
    "--seconds", type=float, help="soak: run for so long, then say what grew and what is left"
  )

  posture = verbs.add_parser("posture", help=POSTURE_HELP, description=POSTURE_HELP)
  add_backend(posture)

  audit = verbs.add_parser("audit", help=AUDIT_HELP, description=AUDIT_HELP)
  actions = audit.add_subparsers(dest="action", required=True, metavar="ACTION")
  check = actions.add_parser("verify", help=VERIFY_HELP, description=VERIFY_HELP)
  check.add_argument("file", type=Path, help="the log's file in use; rotated ones are found by it")
  check.add_argument(
    "--after",
    default=START,
    type=checked_hash,
    metavar="HASH",
    help="last hash of older files that were moved away",
  )
  check.add_argument(
    "--noted",
    type=checked_hash,
    metavar="HASH",
    help="a hash noted before, that must still be there",
  )

  add_images(verbs)
  verbs.add_parser("doctor", help=DOCTOR_HELP, description=DOCTOR_HELP)
  verbs.add_parser("reap", help=REAP_HELP, description=REAP_HELP)
  return top


def add_backend(command: argparse.ArgumentParser) -> None:
  command.add_argument(
    "--backend",
    default="auto",
    choices=("auto", "bwrap", "docker"),
    help="what makes the sandboxes [docker if a daemon answers, else bwrap]",
  )
  command.add_argument(
    "--runtime", default="auto", choices=("auto", "runc", "runsc"), help="of docker"
  )
  names = ", ".join(image_names())
  image_help = f"{names}; or a root tree for bwrap, an image name for docker [the host's Python]"
  command.add_argument("--image", default="", help=image_help)
  command.add_argument(
    "--waive", action="append", default=[], choices=tuple(CHECKS), help="a posture check to waive"
  )


def checked_hash(text: str) -> str:
  if not re.fullmatch("[0-9a-f]{64}", text):
    raise argparse.ArgumentTypeError(f"{text!r} is no hash; it has 64 digits from 0 to f")
  return text


def config_of(arguments: argparse.Namespace, **more) -> PoolConfig:
  return PoolConfig(
    backend=arguments.backend,
    runtime=arguments.runtime,
    image=arguments.image,
    waived_checks=tuple(arguments.waive),
    **more,
  )


async def run_one(arguments: argparse.Namespace) -> int:
  files: dict[str, bytes] = {}
  for path in map(Path, arguments.file):
    if path.name in files:
      raise ValueError(f"--file {path}: there is another {path.name!r}; rename one of them")
    files[path.name] = path.read_bytes()
  for pair in arguments.env:
    if "=" not in pair:
      raise ValueError(f"--env {pair} must be NAME=VALUE")
  env = dict(pair.split("=", 1) for pair in arguments.env)
  given = {name: getattr(arguments, name) for name in LIMITS}
  limits = replace(limits_of(arguments.image), **{k: v for k, v in given.items() if v is not None})
  if arguments.deadline_s is not None and not arguments.deadline_s > 0:
    raise ValueError(f"--deadline-s {arguments.deadline_s:g} must be above 0")
  stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
  request = Request(tuple(arguments.argv), files, stdin, env, limits, tenant="command line")
  async with Pool(config_of(arguments, size=1, audit_path=arguments.audit, limits=limits)) as pool:
    result = await pool.run(request, deadline_s=arguments.deadline_s)
  sys.stdout.buffer.write(result.stdout)
  sys.stderr.buffer.write(result.stderr)
  if result.exit_code is not None:
    return result.exit_code
  detail = f": {result.detail}" if result.detail else ""
  print(f"sandbox_runner: {result.outcome}{detail} ({result.backend})", file=sys.stderr)
  return 125 if result.signal is None else 128 + result.signal


async def run_bench(arguments: argparse.Namespace) -> int:
  config = config_of(arguments, size=arguments.size)
  if arguments.seconds is None:
    figures = await bench.bench(config, arguments.snippet, seconds=3.0)
    print(f"{bench.HEADER}\n{figures}")
    return 0
  if not (arguments.seconds > 0 and math.isfinite(arguments.seconds)):
    raise ValueError(f"--seconds {arguments.seconds:g} must be above 0, and end")
  report, clean = await bench.soak(config, arguments.snippet, arguments.seconds)
  print("\n".join(report))
  return 0 if clean else 1


async def run_posture(arguments: argparse.Namespace) -> int:
  """A row for each check, a column for each backend; below it what is wrong."""
  arguments.waive = list(CHECKS)  # so that the pool starts and tells
  found = {}
  for backend, runtime in chosen_backends(arguments):
    arguments.backend, arguments.runtime = backend, runtime
    async with Pool(config_of(arguments, size=1)) as pool:
      found[pool.backend.name] = pool.posture
  print(f"{'':18}{''.join(f'{name:14}' for name in found)}".rstrip())
  for check in CHECKS:
    states = ("FAILS" if posture[check] else "holds" for posture in found.values())
    print(f"{check:18}{''.join(f'{state:14}' for state in states)}".rstrip())
  failed = [(n, c, d) for n, posture in found.items() for c, d in posture.items() if d]
  for name, check, detail in failed:
    print(f"{name}: {check}: {detail}")
  return 1 if failed else 0


def chosen_backends(arguments: argparse.Namespace) -> list[tuple[str, str]]:
  """(backend, runtime) of each that is asked for and works here; those asked for by name, all."""
  chosen = []
  for status in detect_backends():
    asked = arguments.backend in ("auto", status.name)
    if asked and (status.available or arguments.backend == status.name):
      runtimes = [r for r in ("runc", "runsc") if status.name == "docker" and r in status.detail]
      wanted = [r for r in runtimes if arguments.runtime in ("auto", r)]
      chosen += [(status.name, runtime) for runtime in wanted or [arguments.runtime]]
  return chosen or [("auto", "auto")]


def run_verify(arguments: argparse.Namespace) -> int:
  verdict = verify(arguments.file, arguments.after, arguments.noted or "")
  for place in verdict.torn:
    print(f"torn by a crash: {place}")
  if verdict.bad:
    print(f"broken at {verdict.bad}")
    return 1
  print(f"sound: {verdict.lines} lines in {verdict.files} files; last hash {verdict.head}")
  return 0


def doctor(_: argparse.Namespace) -> int:
  statuses = detect_backends()
  for status in statuses:
    state = "works" if status.available else "missing"
    fix = f"; to get it: {status.fix}" if status.fix else ""
    print(f"{status.name:8}{state:9}{status.detail}{fix}")
  return 0 if any(s.available for s in statuses) else 1


def run_reap(_: argparse.Namespace) -> int:
  for name in reap():
    print(name)
  return 0


COMMANDS = {
  "run": lambda arguments: asyncio.run(run_one(arguments)),
  "bench": lambda arguments: asyncio.run(run_bench(arguments)),
  "posture": lambda arguments: asyncio.run(run_posture(arguments)),
  "audit": run_verify,
  "images": run_images,
  "doctor": doctor,
  "reap": run_reap,
}


def main() -> int:
  arguments = parser().parse_args()
  level = logging.ERROR if arguments.verb == "posture" else logging.WARNING
  logging.basicConfig(format="%(name)s: %(message)s", level=level)
  try:
    return COMMANDS[arguments.verb](arguments)
  except (ValueError, OSError) as e:
    print(f"sandbox_runner: {' '.join(str(e).split())}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    return 130


if __name__ == "__main__":
  sys.exit(main())
