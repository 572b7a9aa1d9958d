"""Files that come back: which, from where, how many; and a supervisor that lies about them."""

import hashlib
import os
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, Request, RequestError, Result
from sandbox_runner.guest.files import MAX_DEPTH, Reading, advance, is_whole
from sandbox_runner.readback import ReadBack
from sandbox_runner.types import SandboxLost

TREE = (
  "mkdir -p a/b .h; echo 1 >x.txt; echo 2 >a/x.txt; echo 3 >a/b/x.txt; echo 4 >.h/y; echo 5 >z; "
)


def run(driver: Driver, script: str, *copy_out: str, **limits) -> Result:
  request = Request(("bash", "-c", script), limits=Limits(**limits), copy_out=copy_out)
  return driver.run(driver.pool.run(request))


@pytest.mark.parametrize(
  ("patterns", "expected"),
  [
    (("x.txt",), {"x.txt"}),
    (("*.txt", "z"), {"x.txt", "z"}),
    (("a/*/x.txt",), {"a/b/x.txt"}),
    (("**/x.txt",), {"x.txt", "a/x.txt", "a/b/x.txt"}),
    (("a/**",), {"a/x.txt", "a/b/x.txt"}),
    (("**",), {"x.txt", "a/x.txt", "a/b/x.txt", ".h/y", "z"}),
    (("[xz]*",), {"x.txt", "z"}),
    (("a", "absent", "a/absent/x"), set()),
  ],
)
def test_patterns(driver: Driver, patterns: tuple[str, ...], expected: set[str]):
  result = run(driver, TREE, *patterns)
  assert set(result.files) == expected
  assert result.files.get("a/b/x.txt", b"3\n") == b"3\n"
  assert result.left_out == {}


def test_modes_do_not_hide_a_file(driver: Driver):
  result = run(driver, "mkdir d; echo in >d/f; echo 1 >g; chmod 0 g d/f d", "**")
  assert result.files == {"d/f": b"in\n", "g": b"1\n"}


@pytest.mark.parametrize("outcome", [Outcome.timeout, Outcome.signal, Outcome.output_limit])
def test_files_come_back_however_the_run_ended(driver: Driver, outcome: Outcome):
  ends = {"timeout": "sleep 60", "signal": "kill -9 $$", "output_limit": "yes"}
  result = run(driver, f"echo kept >f; {ends[outcome]}", "f", wall_s=2, output_bytes=100)
  assert (result.outcome, result.files) == (outcome, {"f": b"kept\n"})


def test_a_process_that_would_go_on_writing_is_gone(driver: Driver):
  """What comes back is what was there when the last process had ended: never a torn line."""
  script = "( while :; do echo 12345678 >>f; done ) & while ! [ -s f ]; do :; done"
  result = run(driver, script, "f")
  assert set(result.files["f"].split(b"\n")) <= {b"12345678", b""}


def test_caps(driver: Driver):
  script = "head -c 3000 /dev/zero >a; head -c 3000 /dev/zero >b; head -c 900 /dev/zero >c"
  result = run(driver, script, "*", copy_out_bytes=4000)
  assert {n: len(c) for n, c in result.files.items()} == {"a": 3000, "c": 900}
  assert result.left_out == {"b": "too large"}
  result = run(driver, "for i in $(seq 300); do echo >$i; done", "*", copy_out_entries=100)
  assert len(result.files) == 100
  assert "entries or time" in result.left_out["**"]


@pytest.mark.parametrize("bad", ["/etc/passwd", "../x", "a/../b", "", "a//b", "a\0b"])
def test_paths_outside_are_refused(driver: Driver, bad: str):
  with pytest.raises(RequestError):
    run(driver, "true", bad)


@pytest.mark.parametrize(
  ("pattern", "path", "whole"),
  [
    ("**", "a/b", True),
    ("**/b", "b", True),
    ("**/b", "a/a/b", True),
    ("a/**/b/*", "a/b/c", True),
    ("a/**/b/*", "a/x/c", False),
    ("a", "a/b", False),
    ("A", "a", False),
    ("*", "new\nline", True),
  ],
)
def test_advance(pattern: str, path: str, whole: bool):
  left = {tuple(pattern.split("/"))}
  for name in path.split("/"):
    left = advance(left, name)
  assert is_whole(left) == whole


def test_links_are_not_followed_even_as_directories(tmp_path: Path):
  outside = tmp_path / "outside"
  outside.mkdir()
  (outside / "secret").write_text("s")
  tree = tmp_path / "tree"
  tree.mkdir()
  (tree / "link").symlink_to(outside)
  (tree / "file").symlink_to(outside / "secret")
  frames = walk(tree, "link/secret", "file", "**")
  assert [h for h, _ in frames] == [
    {"left_out": "file", "why": "a link"},
    {"left_out": "link", "why": "a link"},
  ]


def test_depth_is_bounded(tmp_path: Path):
  here = os.open(tmp_path, os.O_RDONLY)
  for _ in range(MAX_DEPTH + 5):
    os.mkdir("d", dir_fd=here)
    here = os.open("d", os.O_RDONLY, dir_fd=here)
  assert walk(tmp_path, "**") == [({"left_out": "/".join("d" * MAX_DEPTH), "why": "too deep"}, b"")]


def walk(root: Path, *patterns: str) -> list[tuple[dict, bytes]]:
  order = {"patterns": patterns, "bytes": 100, "entries": 100, "seconds": 10, "tree": False}
  frames: list[tuple[dict, bytes]] = []
  fd = os.open(root, os.O_RDONLY)
  Reading(order, lambda header, blob=b"": frames.append((header, blob))).walk(fd)
  os.close(fd)
  return frames


def named(name, content: bytes = b"abc") -> dict:
  return {"file": name, "kind": "file", "sha256": hashlib.sha256(content).hexdigest()}


def test_sound_frames_are_a_file():
  back = ReadBack(Limits())
  for header, blob in (({"part": 1}, b"a"), ({"part": 1}, b"bc"), (named("d/f"), b"")):
    back.add(header, blob)
  assert back.files == {"d/f": b"abc"}


def test_a_snapshot_has_directories_and_links_too():
  back = ReadBack(Limits(), tree=True)
  for kind in ("file", "dir", "link"):
    back.add({"part": 1}, b"abc")
    back.add({**named(kind), "kind": kind, "mode": 0o104711, "mtime_ns": -5}, b"")
  assert {n: (e.kind, e.mode, e.mtime_ns) for n, e in back.entries.items()} == {
    kind: (kind, 0o711, -5) for kind in ("file", "dir", "link")
  }


@pytest.mark.parametrize(
  "header",
  [
    *(named(n) for n in ("../f", "/f", "a//b", "", "\0", "n" * 256, "\ud800", 5, None, ["f"])),
    named("f", b"other"),
    {**named("f"), "kind": "dir"},
    {**named("f"), "kind": "link"},
    {**named("f"), "kind": ["file"]},
    {**named("f"), "mode": "7"},
    {**named("f"), "mtime_ns": 1 << 70},
    {"file": "f"},
    {"left_out": "../f", "why": ""},
    {},
  ],
)
def test_unsound_frames_lose_the_sandbox(header: dict):
  back = ReadBack(Limits())
  back.add({"part": 1}, b"abc")
  with pytest.raises(SandboxLost):
    back.add(header, b"")


def test_more_than_was_asked_for_loses_the_sandbox():
  back = ReadBack(Limits(copy_out_bytes=3, copy_out_entries=1))
  back.add({"part": 1}, b"abc")
  with pytest.raises(SandboxLost, match="more bytes"):
    back.add({"part": 1}, b"d")
  back.add(named("f"), b"")
  with pytest.raises(SandboxLost, match="more files"):
    back.add(named("g", b""), b"")
  with pytest.raises(SandboxLost, match="no name"):
    back.add(named("f", b""), b"")
