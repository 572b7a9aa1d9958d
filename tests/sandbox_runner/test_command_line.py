"""python -m sandbox_runner: each command, its exit status, and one line for what is wrong."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_host import arguments_of_all

from sandbox_runner import bench
from sandbox_runner.__main__ import parser
from sandbox_runner.audit import Audit
from sandbox_runner.cgroups import ControlGroup, find_parents
from sandbox_runner.posture import CHECKS

REPOSITORY = Path(__file__).parent.parent.parent


def command(*arguments, **more) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, "-m", "sandbox_runner", *map(str, arguments)],
    **{"stdin": subprocess.DEVNULL, **more},
    capture_output=True,
    text=True,
    cwd=REPOSITORY,
    timeout=120,
    check=False,
  )


def test_run_gives_the_program_all_it_is_given(tmp_path: Path):
  (tmp_path / "main.py").write_text("import os, sys; print(os.environ['A'], input()); sys.exit(7)")
  audit = tmp_path / "audit.jsonl"
  done = command(
    *("run", "--backend", "bwrap", "--file", tmp_path / "main.py", "--env", "A=x=y"),
    *("--audit", audit, "--", "python3", "main.py"),
    stdin=None,
    input="in\n",
  )
  assert (done.returncode, done.stdout, done.stderr) == (7, "x=y in\n", "")
  assert json.loads(audit.read_text().splitlines()[-1])["exit_code"] == 7


def test_run_of_no_program_ends_like_a_shell():
  done = command("run", "--backend", "bwrap", "--", "no-such-program")
  assert (done.returncode, done.stdout) == (127, "")
  assert done.stderr == "no-such-program: No such file or directory\n"


def test_run_tells_other_ends_apart():
  run = ("run", "--backend", "bwrap")
  killed = command(*run, "--", "sh", "-c", "kill -TERM $$")
  assert (killed.returncode, killed.stderr) == (143, "sandbox_runner: signal (bwrap)\n")
  late = command(*run, "--wall-s", "0.2", "--", "sleep", "9")
  assert (late.returncode, late.stderr) == (125, "sandbox_runner: timeout (bwrap)\n")
  cut = command(*run, "--deadline-s", "3", "--", "sleep", "4323")
  assert cut.returncode == 125
  assert cut.stderr == "sandbox_runner: cancelled: its deadline of 3 s passed (bwrap)\n"
  assert not [a for a in arguments_of_all().values() if a[:2] == [b"sleep", b"4323"]]


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    ((), "the following arguments are required: COMMAND"),
    (("frob",), "invalid choice: 'frob'"),
    (("run",), "the following arguments are required: argv"),
    (("run", "--pids", "x", "--", "true"), "invalid int value: 'x'"),
    (("run", "--pids", "0", "--", "true"), "pids=0 must be a whole number"),
    (("run", "--file", "/nowhere/x", "--", "true"), "'/nowhere/x'"),
    (("run", "--file", "/", "--", "true"), "'/'"),
    (("run", "--env", "A", "--", "true"), "--env A must be NAME=VALUE"),
    (("run", "--deadline-s", "-1", "--", "true"), "--deadline-s -1 must be above 0"),
    (("run", "--waive", "luck", "--", "true"), "invalid choice: 'luck'"),
    (("run", "--audit", "/nowhere/x", "--backend", "bwrap", "--", "true"), "/nowhere/x"),
    (("run", "--backend", "bwrap", "--", ""), "argv is empty"),
    (("bench", "--size", "0"), "size=0 must be at least 1"),
    (("bench", "--seconds", "0"), "--seconds 0 must be above 0"),
    (("bench", "--seconds", "inf"), "--seconds inf must be above 0, and end"),
    (("run", "--file", "README.md", "--file", "docs/../README.md", "--", "true"), "rename one"),
    (("run", "--wall-s", "nan", "--", "true"), "wall_s=nan must be in"),
    (("doctor", "x"), "unrecognized arguments: x"),
    (("reap", "x"), "unrecognized arguments: x"),
    (("audit", "verify", "/"), "'/'"),
    (("audit", "verify", "--noted", "xyz", "/"), "'xyz' is no hash"),
    (("audit", "verify", "--after", "xyz", "/"), "'xyz' is no hash"),
    (("bench", "--backend", "bwrap", "--snippet", "1/0"), "ZeroDivisionError"),
    (("audit",), "the following arguments are required: ACTION"),
    (("audit", "verify", "/nowhere/x"), "'/nowhere/x'"),
  ],
)
def test_bad_input_is_one_line_and_status_2(arguments: tuple[str, ...], said: str):
  done = command(*arguments)
  assert done.returncode == 2
  assert said in done.stderr
  assert done.stdout == ""
  assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
  "verb",
  [
    *((), ("run",), ("bench",), ("posture",), ("doctor",), ("reap",), ("audit",)),
    ("audit", "verify"),
  ],
)
def test_help_says_what_each_command_is(verb: tuple[str, ...]):
  done = command(*verb, "--help")
  assert (done.returncode, done.stderr) == (0, "")
  usage, description, *_ = done.stdout.split("\n\n")
  assert usage.startswith("usage: python -m sandbox_runner " + " ".join(verb))
  assert len(description) > 20


def test_every_option_is_explained():
  parsers = [parser()]
  for one in parsers:
    for action in one._actions:
      if isinstance(action, argparse._SubParsersAction):
        parsers += action.choices.values()
        assert {c.dest for c in action._choices_actions if c.help} == set(action.choices)
      else:
        assert action.help, (one.prog, action.dest)
  assert len(parsers) == 12


def test_no_backend_is_said_with_the_way_to_get_one(tmp_path: Path):
  environment = {"PATH": str(tmp_path)}
  done = command("run", "--", "true", env=environment)
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert "apt-get install -y bubblewrap" in done.stderr
  doctor = command("doctor", env=environment)
  assert doctor.returncode == 1
  assert [line.split()[1] for line in doctor.stdout.splitlines()] == ["missing", "missing"]


def test_doctor_finds_bwrap():
  done = command("doctor")
  assert done.returncode == 0
  assert "bwrap   works" in done.stdout


def test_bench_gives_one_row():
  done = command("bench", "--backend", "bwrap", "--size", "1")
  assert done.returncode == 0, done.stderr
  header, figures = done.stdout.splitlines()
  assert header.split() == ["runs/s", "p50", "ms", "p99", "ms", "n"]
  name, *numbers = figures.split()
  assert name == "bwrap"
  assert all(float(n) > 0 for n in numbers)


@pytest.mark.parametrize(
  "backend",
  [
    ("--backend", "bwrap"),
    pytest.param(("--backend", "docker", "--runtime", "runc"), marks=pytest.mark.docker),
  ],
)
def test_soak_ends_with_nothing_left(backend: tuple[str, ...]):
  done = command("bench", *backend, "--seconds", "3")
  assert done.returncode == 0, done.stdout + done.stderr
  runs, memory, left = done.stdout.splitlines()
  assert "runs in 3 s" in runs
  assert left == "left behind: 0 processes, 0 cgroups, 0 containers, 0 mounts"
  before_kb, after_kb = [int(word) for word in memory.split() if word.isdigit()][::2]
  assert after_kb - before_kb < 4096


def test_what_is_left_is_found(monkeypatch):
  monkeypatch.setattr(bench, "SETTLE_S", 0.1)
  before = bench.host_objects()
  child = subprocess.Popen(["sleep", "4324"])
  orphan = "import os, sys; os.fork() and sys.exit(); os.execvp('sleep', ['runner-1', '4324'])"
  subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.DEVNULL)
  parents, _ = find_parents()
  group = ControlGroup(parents, "runner-1") if parents else None
  try:
    left = asyncio.run(bench.left_since(before, "runner"))
    others = [pid for pid, a in arguments_of_all().items() if a[:2] == [b"runner-1", b"4324"]]
    assert set(left["processes"]) == {str(child.pid), *map(str, others)}
    assert len(others) == 1
    groups = group.directories.values() if group else ()
    assert left["cgroups"] == sorted({str(d) for d in groups})
  finally:
    child.kill()
    child.wait()
    for pid in others:
      os.kill(pid, 9)
    if group:
      group.remove()


def test_posture_prints_a_table():
  done = command("posture", "--backend", "bwrap")
  assert done.returncode == 0, done.stderr
  lines = [line.split() for line in done.stdout.splitlines()]
  assert lines == [["bwrap"], *([check, "holds"] for check in CHECKS)]


def test_verify_names_the_first_bad_line(tmp_path: Path):
  path = tmp_path / "audit.jsonl"
  audit = Audit(str(path))
  audit.event("number", n=1)
  audit.event("number", n=2)
  audit.close()
  sound = command("audit", "verify", path)
  head = json.loads(path.read_text().splitlines()[-1])["hash"]
  assert (sound.returncode, sound.stdout) == (
    0,
    f"sound: 3 lines in 1 files; last hash {head}\n",
  )
  assert command("audit", "verify", path, "--noted", head).returncode == 0
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:2]) + lines[2][:30])
  torn = command("audit", "verify", path)
  assert (torn.returncode, torn.stdout.splitlines()[0]) == (0, f"torn by a crash: {path}:3")
  assert command("audit", "verify", path, "--noted", head).returncode == 1
  path.write_text(lines[0] + lines[2])
  bad = command("audit", "verify", path)
  assert bad.returncode == 1
  assert bad.stdout.startswith(f"broken at {path}:2: ")
  previous = json.loads(lines[1])["previous"]
  path.write_text(lines[1] + lines[2])
  assert command("audit", "verify", path, "--after", previous).returncode == 0


def test_reap_lists_what_a_killed_runner_left():
  code = (
    "import asyncio, os\n"
    "from sandbox_runner import *\n"
    "async def main():\n"
    "  async with Pool(PoolConfig('bwrap', 1)) as pool:\n"
    "    print(pool.runner, flush=True)\n"
    "    os.kill(os.getpid(), 9)\n"
    "asyncio.run(main())\n"
  )
  killed = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False
  )
  done = command("reap")
  assert done.returncode == 0
  assert (killed.stdout.strip() in done.stdout) == bool(find_parents()[0])
  assert command("reap").stdout == ""
