"""Command line: `python -m sandbox_runner run -- python3 -c 'print(1)'`, `doctor`, `reap`."""

import argparse
import asyncio
import logging
import sys
from dataclasses import fields

from sandbox_runner.detect import detect_backends
from sandbox_runner.journal import reap
from sandbox_runner.pool import Pool, PoolConfig
from sandbox_runner.types import Limits, Outcome, Request


def parser() -> argparse.ArgumentParser:
  top = argparse.ArgumentParser(prog="python -m sandbox_runner", description=__doc__)
  verbs = top.add_subparsers(dest="verb", required=True)
  run = verbs.add_parser("run", help="run one program in a sandbox; its exit code is ours")
  run.add_argument("--backend", default="auto", choices=("auto", "bwrap", "docker"))
  run.add_argument("--runtime", default="auto", choices=("auto", "runc", "runsc"))
  run.add_argument("--image", default="", help="root tree for bwrap, image name for docker")
  run.add_argument(
    "--file", action="append", default=[], help="file to put into the work directory"
  )
  for field in fields(Limits):
    option = "--" + field.name.replace("_", "-")
    run.add_argument(option, type=field.type, default=field.default, help=f"[{field.default}]")
  run.add_argument("argv", nargs="+", help="the program and its arguments, after --")
  verbs.add_parser("doctor", help="say which backends work here, and how to get the others")
  verbs.add_parser("reap", help="remove what killed runners have left")
  return top


async def run_one(arguments: argparse.Namespace) -> int:
  """The program's exit code, 128 + signal, or 125 with the outcome on stderr."""
  files = {}
  for path in arguments.file:
    with open(path, "rb") as f:
      files[path.rpartition("/")[2]] = f.read()
  limits = Limits(**{f.name: getattr(arguments, f.name) for f in fields(Limits)})
  stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
  request = Request(tuple(arguments.argv), files, stdin, limits=limits, tenant="command line")
  config = PoolConfig(arguments.backend, 1, image=arguments.image, runtime=arguments.runtime)
  async with Pool(config) as pool:
    result = await pool.run(request)
  sys.stdout.buffer.write(result.stdout)
  sys.stderr.buffer.write(result.stderr)
  if result.outcome == Outcome.exit:
    return result.exit_code
  detail = f": {result.detail}" if result.detail else ""
  print(f"sandbox_runner: {result.outcome}{detail} ({result.backend})", file=sys.stderr)
  return 128 + result.signal if result.outcome == Outcome.signal else 125


def doctor() -> int:
  """0 if at least one backend works."""
  statuses = detect_backends()
  for status in statuses:
    state = "works" if status.available else "missing"
    fix = f"; to get it: {status.fix}" if status.fix else ""
    print(f"{status.name:8}{state:9}{status.detail}{fix}")
  return 0 if any(s.available for s in statuses) else 1


def main() -> int:
  logging.basicConfig(format="%(name)s: %(message)s")
  arguments = parser().parse_args()
  if arguments.verb == "doctor":
    return doctor()
  if arguments.verb == "reap":
    for name in reap():
      print(name)
    return 0
  try:
    return asyncio.run(run_one(arguments))
  except (ValueError, FileNotFoundError) as e:
    print(f"sandbox_runner: {e}", file=sys.stderr)
    return 2


if __name__ == "__main__":
  sys.exit(main())
