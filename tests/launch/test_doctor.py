import io
import json
import sys

import pytest
from rich.console import Console

from ptjax.launch import doctor, machine
from ptjax.launch.machine import Check


def checks(*ok: str) -> list[Check]:
  names = ("Python", "JAX", "sandbox: docker", "sandbox: bwrap", "ray")
  return [Check(name, name in ok, "found", "" if name in ok else "do this") for name in names]


@pytest.mark.parametrize(
  ("ok", "lacks"),
  [
    (("Python", "JAX", "sandbox: bwrap"), []),
    (("Python", "JAX", "sandbox: docker"), []),
    (("Python", "JAX", "ray"), ["a sandbox backend"]),
    (("Python", "sandbox: bwrap"), ["JAX"]),
  ],
)
def test_what_is_required(ok, lacks):
  assert doctor.missing_requirements(checks(*ok)) == lacks


@pytest.mark.parametrize(
  ("ok", "sandbox_mark", "sandbox_fix"),
  [(("Python", "sandbox: docker"), "-", "optional: do this"), (("Python",), "✗", "do this")],
)
def test_table_marks_what_is_required_and_what_is_optional(ok, sandbox_mark, sandbox_fix):
  console = Console(width=100, record=True, file=io.StringIO())
  found = checks(*ok)
  doctor.print_table(found, doctor.missing_requirements(found), console)
  lines = console.export_text().splitlines()
  cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
  assert ["✓", "Python", "found", ""] in cells
  assert ["✗", "JAX", "found", "do this"] in cells
  assert [sandbox_mark, "sandbox: bwrap", "found", sandbox_fix] in cells
  assert ["-", "ray", "found", "optional: do this"] in cells


def test_this_machine_without_any_program_lacks_a_sandbox(python):
  result = python("-m", "ptjax.launch", "doctor", "--json", env={"PATH": "/nonexistent"})
  assert result.returncode == 1, result.stderr
  found = json.loads(result.stdout)
  assert found["ok"] is False
  assert found["lacks"] == ["a sandbox backend"]
  by_name = {check["name"]: check for check in found["checks"]}
  assert by_name["JAX"]["ok"]
  assert by_name["docker daemon"]["found"] == "docker is not installed"
  assert by_name["sandbox: bwrap"]["found"] == "bwrap is not installed"
  assert all(check["ok"] or check["fix"] for check in found["checks"])


def test_probe_tells_success_failure_absence_and_silence():
  def program(code, **kwargs):
    return machine.probe([sys.executable, "-c", code], **kwargs)

  assert program("print('a\\nb')") == (True, "a\nb")
  assert program("import sys; sys.exit('why\\nlast')") == (False, "last")
  assert program("raise SystemExit(3)") == (False, f"{sys.executable} ended with status 3")
  assert machine.probe(["no-such-program"]) == (False, "no-such-program is not installed")
  ok, text = program("import time; time.sleep(30)", timeout_s=0.2)
  assert (ok, text) == (False, f"{sys.executable} did not answer within 0.2 s")


def test_package_reports_version_or_command():
  assert machine.package("rich", "tables", "pip install rich").ok
  absent = machine.package("no-such-distribution", "nothing", "pip install no-such-distribution")
  assert (absent.ok, absent.fix) == (False, "pip install no-such-distribution")
