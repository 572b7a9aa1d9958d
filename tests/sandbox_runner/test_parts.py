"""The parts that need no sandbox: frames, verdicts, wiping, control groups."""

import asyncio
import os
import signal
import struct
import sys
import time
from pathlib import Path

import pytest

from sandbox_runner import Limits, Outcome
from sandbox_runner.backends.base import Usage, kill_child
from sandbox_runner.backends.bwrap import covers_range
from sandbox_runner.cgroups import ControlGroup, _counter, find_parents, remove_groups
from sandbox_runner.guest.boxes import empty
from sandbox_runner.protocol import Output, Report, frame, parse_report, read_frame
from sandbox_runner.sandbox import judge, overrun
from sandbox_runner.types import SandboxLost

REPORT = {
  "why": "exit",
  "status": 0,
  "failure": "",
  "wall_s": 0.5,
  "cpu_s": 0.25,
  "peak_kb": 10,
  "counts": [30, 2],
  "io": [100, 32],
  "processes": 3,
}


def output(stdout: bytes = b"o" * 20, stderr: bytes = b"er") -> Output:
  made = Output(cap=20)
  made.add({"stream": 0}, stdout)
  made.add({"stream": 1}, stderr)
  return made


def read(data: bytes, max_blob: int = 100) -> tuple[dict, bytes]:
  async def go():
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_frame(reader, max_blob)

  return asyncio.run(go())


def test_frame_round_trip():
  assert read(b"".join(frame({"a": 1}, b"bl", b"ob"))) == ({"a": 1}, b"blob")


@pytest.mark.parametrize(
  "data",
  [
    b"",
    b"\0\0\0",
    struct.pack("!II", 2, 5) + b"{}abc",
    struct.pack("!II", 1 << 31, 0) + b"{}",
    struct.pack("!II", 2, 101) + b"{}" + bytes(101),
    struct.pack("!II", 2, 0) + b"[]",
    struct.pack("!II", 2, 0) + b"\xff\xff",
    struct.pack("!II", 60000, 0) + b"[" * 60000,
  ],
)
def test_hostile_frames_lose_the_sandbox(data: bytes):
  with pytest.raises(SandboxLost):
    read(data)


def test_report_fits_the_output():
  report = parse_report(REPORT, output())
  assert (report.counts, report.peak_bytes) == ((30, 2), 10240)
  assert (report.io, report.processes) == ((100, 32), 3)
  unseen = parse_report({**REPORT, "io": None, "processes": None}, output())
  assert (unseen.io, unseen.processes) == (None, None)
  for streams in ((b"o" * 19, b"er"), (b"o" * 20, b"err")):
    with pytest.raises(SandboxLost):
      parse_report(REPORT, output(*streams))


@pytest.mark.parametrize(
  ("header", "blob"), [({"stream": 2}, b""), ({"stream": True}, b""), ({"stream": 0}, b"x")]
)
def test_unsound_output_loses_the_sandbox(header: dict, blob: bytes):
  with pytest.raises(SandboxLost):
    output().add(header, blob)


@pytest.mark.parametrize(
  "change",
  [
    {"why": "passed"},
    {"status": -1},
    {"status": True},
    {"status": None},
    {"failure": 7},
    {"failure": "x" * 5000},
    {"wall_s": float("nan")},
    {"cpu_s": -1.0},
    {"counts": [30]},
    {"counts": [30, 3]},
    {"counts": 5},
    {"peak_kb": 1 << 70},
    {"io": [1]},
    {"io": [1, -1]},
    {"io": 7},
    {"processes": -1},
    {"processes": "3"},
  ],
)
def test_unsound_reports_lose_the_sandbox(change: dict):
  with pytest.raises(SandboxLost):
    parse_report({**REPORT, **change}, output())
  with pytest.raises(SandboxLost):
    parse_report({k: v for k, v in REPORT.items() if k not in change}, output())


@pytest.mark.parametrize(
  ("why", "status", "kills", "cpu_s", "ended", "expected"),
  [
    ("exit", 5 << 8, 0, 0.1, None, (Outcome.exit, 5, None)),
    ("exit", 5 << 8, 1, 0.1, None, (Outcome.exit, 5, None)),  # only a child was killed
    ("exit", signal.SIGKILL, 1, 0.1, None, (Outcome.oom, None, None)),
    ("exit", signal.SIGKILL, 0, 0.1, None, (Outcome.signal, None, 9)),
    ("exit", signal.SIGKILL, 0, 10.0, None, (Outcome.timeout, None, None)),
    ("exit", signal.SIGXCPU, 0, 10.0, None, (Outcome.timeout, None, None)),
    ("exit", signal.SIGXCPU, 0, 0.1, None, (Outcome.signal, None, 24)),
    ("exit", signal.SIGSEGV | 0x80, 0, 0.1, None, (Outcome.signal, None, 11)),
    ("wall", signal.SIGKILL, 1, 0.1, None, (Outcome.timeout, None, None)),  # ours wins
    ("output", signal.SIGKILL, 1, 0.1, None, (Outcome.output_limit, None, None)),
    ("cancel", signal.SIGKILL, 0, 0.1, Outcome.timeout, (Outcome.timeout, None, None)),
    ("cancel", signal.SIGKILL, 1, 0.1, Outcome.pids_limit, (Outcome.pids_limit, None, None)),
    ("wall", signal.SIGKILL, 1, 0.1, Outcome.pids_limit, (Outcome.timeout, None, None)),
    ("disk", signal.SIGKILL, 1, 0.1, None, (Outcome.disk_limit, None, None)),
    ("pids", signal.SIGKILL, 1, 0.1, None, (Outcome.pids_limit, None, None)),
    ("exit", signal.SIGXFSZ, 0, 0.1, None, (Outcome.signal, None, 25)),  # any program can send it
    ("exit", 0, 0, 0.1, Outcome.pids_limit, (Outcome.pids_limit, None, None)),
  ],
)
def test_judge(why, status, kills, cpu_s, ended, expected):
  report = Report(why, status, "", 0.1, cpu_s, 0, (0, 0))
  assert judge(report, kills, cpu_s, Limits(), ended) == expected


@pytest.mark.parametrize(
  ("cpu_s", "refused", "expected"),
  [
    (9.9, 1000, None),
    (None, 0, None),
    (10.1, 0, Outcome.timeout),
    (None, 1001, Outcome.pids_limit),
  ],
)
def test_overrun(cpu_s: float | None, refused: int, expected: Outcome | None):
  assert overrun(Usage(0, cpu_s, 0, refused), Limits()) == expected


def test_empty_removes_any_tree(tmp_path: Path):
  outside = tmp_path / "outside"
  outside.write_text("stays")
  tree = tmp_path / "tree"
  tree.mkdir()
  (tree / "link").symlink_to(outside)
  (tree / "up").symlink_to("..")
  (tree / "sub" / "sub").mkdir(parents=True)
  (tree / "sub" / "sub" / "link").symlink_to(tmp_path)
  os.mkfifo(tree / "sub" / "fifo")
  here = os.open(tree, os.O_RDONLY)
  for _ in range(1500):  # deeper than any path may be long
    os.mkdir("deeeeeeep", dir_fd=here)
    below = os.open("deeeeeeep", os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
  os.close(here)
  empty(str(tree))
  assert os.listdir(tree) == []
  assert outside.read_text() == "stays"


def test_counter_takes_the_whole_name():
  assert _counter(b"oom 4\noom_kill 2\nmax 7\n", b"oom_kill") == 2
  assert _counter(b"low 0\n", b"max") == 0


def test_remove_groups_takes_only_ours(tmp_path: Path):
  with pytest.raises(ValueError, match="not a control group"):
    remove_groups([str(tmp_path)])
  assert tmp_path.exists()


@pytest.mark.skipif(find_parents()[0] is None, reason=find_parents()[1])
def test_group_limits_memory_and_is_removed():
  group = ControlGroup(find_parents()[0], f"test-{os.getpid()}")
  group.set_limits(32 << 20, 8)
  assert group.memory_limit() == 32 << 20
  pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
  for directory in set(group.directories.values()):
    (directory / "cgroup.procs").write_text(str(pid))
  assert group.processes() == [pid]
  group.remove()
  assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
  assert not any(d.exists() for d in group.directories.values())


def test_covers_range():
  assert covers_range("         0          0 4294967295\n")
  assert not covers_range("0 1000 1\n1 100000 65536\n")


def test_a_child_that_has_ended_unseen_keeps_its_status(caplog: pytest.LogCaptureFixture):
  async def end_late() -> int:
    child = await asyncio.create_subprocess_exec("true")
    time.sleep(0.3)  # it ends, and its watcher in this loop does not know yet
    kill_child(child)
    return await child.wait()

  policy = asyncio.get_event_loop_policy()
  if sys.version_info < (3, 12):  # the watcher of later ones; its thread would see the end at once
    policy.set_child_watcher(asyncio.PidfdChildWatcher())
  try:
    assert asyncio.run(end_late()) == 0
  finally:
    if sys.version_info < (3, 12):
      policy.set_child_watcher(None)
  assert not caplog.records
