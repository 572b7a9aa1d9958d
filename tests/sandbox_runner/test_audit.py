"""The audit log: what it holds, how its chain finds changes, crashes, rotation, several writers."""

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_runner import Outcome, Request, Result
from sandbox_runner.audit import Audit, AuditError
from sandbox_runner.audit_chain import START, rotated, seal, verify

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def log(tmp_path: Path) -> Path:
  """A log of seven lines: "opened", and six of the number that they hold."""
  path = tmp_path / "audit.jsonl"
  fill(path, range(6))
  return path


def fill(path: Path, numbers, **options) -> None:
  audit = Audit(str(path), **options)
  for n in numbers:
    audit.event("number", n=n)
  audit.close()


def numbers(path: Path) -> list[int]:
  """In the order of the log, over all its files; a torn line is left out."""
  found = []
  for file in (*rotated(path), path):
    for line in file.read_text().splitlines():
      try:
        entry = json.loads(line)
      except ValueError:
        continue
      found += [entry["n"]] if entry["event"] == "number" else []
  return found


def test_each_line_holds_the_hash_of_the_one_before(log: Path):
  entries = [json.loads(line) for line in log.read_text().splitlines()]
  assert [e["previous"] for e in entries] == [START, *(e["hash"] for e in entries[:-1])]
  verdict = verify(log)
  assert (verdict.bad, verdict.torn, verdict.lines, verdict.files) == ("", [], 7, 1)
  assert verdict.head == entries[-1]["hash"]
  assert log.stat().st_mode & 0o077 == 0


def change(lines: list[bytes]) -> list[bytes]:
  return [line.replace(b'"n": 2', b'"n": 9') for line in lines]


def change_and_seal(lines: list[bytes]) -> list[bytes]:
  entry = json.loads(lines[3])
  line, _ = seal(entry.pop("previous"), {**entry, "n": 9})
  return [*lines[:3], line, *lines[4:]]


@pytest.mark.parametrize(
  ("tamper", "first_bad"),
  [
    (change, 4),
    (change_and_seal, 5),  # the change itself is sound by itself, its successor is not
    (lambda lines: lines[1:], 1),
    (lambda lines: [*lines[:3], *lines[4:]], 4),
    (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
    (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
    (lambda lines: [*lines[:3], b"\n", *lines[3:]], 4),
    (lambda lines: [*lines[:3], b"{}\n", *lines[3:]], 4),
    (lambda lines: [*lines[:3], lines[3][:50] + b"\n", *lines[4:]], 4),
    (lambda lines: [*lines[:6], lines[6].replace(b'"n": 5', b'"n": 9')], 7),
    (lambda lines: [*lines[:6], lines[6].replace(b'"n": 5', b'"n": 9').rstrip()], 7),
    (lambda lines: [*lines[:6], lines[6][:50] + b"\n"], 7),
    (lambda lines: [*lines, b"\xff\xfe\n"], 8),
    (lambda lines: [b"[" * 100_000 + b"\n", *lines], 1),
  ],
)
def test_first_bad_line_is_named(log: Path, tamper, first_bad: int):
  log.write_bytes(b"".join(tamper(log.read_bytes().splitlines(keepends=True))))
  assert verify(log).bad.startswith(f"{log}:{first_bad}: ")


def test_cut_end_is_found_by_a_noted_hash(log: Path):
  head = verify(log).head
  assert not verify(log, noted=head).bad
  log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
  assert not verify(log).bad
  assert "cut off" in verify(log, noted=head).bad


@pytest.mark.parametrize("left", [1, 40, 150, -1])
def test_log_goes_on_after_a_torn_line(log: Path, left: int):
  whole = log.read_bytes()
  last = whole.splitlines(keepends=True)[-1]
  log.write_bytes(whole[: -len(last)] + last[:left])
  torn = left != -1  # else only the end of the line is missing
  assert verify(log).torn == ([f"{log}:7"] if torn else [])
  fill(log, (6, 7))
  verdict = verify(log)
  assert verdict.bad == ""
  assert verdict.torn == ([f"{log}:7"] if torn else [])
  assert numbers(log) == [*range(5), *([] if torn else [5]), 6, 7]


@pytest.mark.parametrize("garbage", [b"[" * 100_000, b"\xff\x00\r\x0b", b'{"event": "recovered"'])
def test_any_unended_rest_is_a_torn_line(log: Path, garbage: bytes):
  with open(log, "ab") as f:
    f.write(garbage)
  assert verify(log).torn == [f"{log}:8"]
  fill(log, (6,))
  assert (verify(log).bad, verify(log).torn) == ("", [f"{log}:8"])


def test_torn_line_cannot_be_changed_later(log: Path):
  with open(log, "ab") as f:
    f.write(b'{"hash": "12')
  fill(log, (6,))
  log.write_bytes(log.read_bytes().replace(b'{"hash": "12\n', b'{"hash": "13\n'))
  assert verify(log).bad.startswith(f"{log}:8: ")


def test_torn_line_does_not_hide_the_loss_of_the_one_before_it(log: Path):
  with open(log, "ab") as f:
    f.write(b'{"hash": "12')
  fill(log, (6,))
  lines = log.read_bytes().splitlines(keepends=True)
  log.write_bytes(b"".join([*lines[:6], *lines[7:]]))
  assert verify(log).bad.startswith(f"{log}:7: ")


def test_chain_goes_on_over_file_borders(tmp_path: Path):
  path = tmp_path / "audit.jsonl"
  fill(path, range(20), rotate_bytes=600)
  fill(path, range(20, 40), rotate_bytes=600)
  files = rotated(path)
  assert len(files) > 10  # and so more than one digit
  assert all(f.stat().st_size <= 600 for f in (*files, path))
  verdict = verify(path)
  assert (verdict.bad, verdict.files, verdict.lines) == ("", len(files) + 1, 42)
  assert numbers(path) == list(range(40))

  begin = verify(path, noted=verdict.head)
  assert not begin.bad
  first_head = json.loads(files[0].read_text().splitlines()[-1])["hash"]
  files[0].rename(tmp_path / "elsewhere")
  assert verify(path).bad.startswith(f"{files[1]}:1: ")
  assert not verify(path, after=first_head).bad
  files[4].unlink()
  assert verify(path, after=first_head).bad.startswith(f"{files[5]}:1: ")


def test_killed_between_rename_and_new_file(tmp_path: Path):
  path = tmp_path / "audit.jsonl"
  fill(path, range(3))
  path.rename(tmp_path / "audit.jsonl.1")
  assert verify(path).lines == 4
  fill(path, (3,))
  assert verify(path).bad == ""
  assert numbers(path) == [0, 1, 2, 3]


def test_writers_share_a_log(tmp_path: Path):
  """Each line of each writer is there once, in its order, in one chain over many files."""
  path = tmp_path / "audit.jsonl"
  code = (
    "import sys\n"
    "from sandbox_runner.audit import Audit\n"
    "audit = Audit(sys.argv[1], rotate_bytes=5000)\n"
    "for n in range(300): audit.event('number', n=n, writer=sys.argv[2])\n"
  )
  writers = [
    subprocess.Popen([sys.executable, "-c", code, str(path), name], cwd=REPOSITORY)
    for name in "abc"
  ]
  assert [w.wait() for w in writers] == [0, 0, 0]
  verdict = verify(path)
  assert (verdict.bad, verdict.torn, verdict.lines) == ("", [], 903)
  entries = [
    json.loads(line) for f in (*rotated(path), path) for line in f.read_text().splitlines()
  ]
  for name in "abc":
    assert [e["n"] for e in entries if e.get("writer") == name] == list(range(300))


def test_writers_that_take_turns_share_a_chain(tmp_path: Path):
  path = tmp_path / "audit.jsonl"
  first, second = Audit(str(path), rotate_bytes=600), Audit(str(path), rotate_bytes=600)
  for n in range(0, 20, 2):
    first.event("number", n=n)
    second.event("number", n=n + 1)
  first.close()
  second.close()
  assert verify(path).bad == ""
  assert numbers(path) == list(range(20))


def test_writer_waits_no_longer_than_its_time(log: Path, monkeypatch):
  monkeypatch.setattr("sandbox_runner.audit.LOCK_S", 0.05)
  with open(log, "rb") as f:
    fcntl.flock(f, fcntl.LOCK_EX)  # of another opening of the file, so not ours
    with pytest.raises(AuditError, match="held its lock"):
      fill(log, (6,))
  fill(log, (6,))
  assert numbers(log) == list(range(7))


FILL_THE_DISK = """
import sys
from pathlib import Path
from sandbox_runner.audit import Audit, AuditError
from sandbox_runner.audit_chain import verify
path = Path("audit.jsonl")
Path("filler").write_bytes(bytes(30_000))
audit = Audit(str(path))
done = 0
try:
  while done < 1000:
    audit.event("number", n=done)
    done += 1
except AuditError as e:
  print(e)
print(verify(path).torn)
Path("filler").unlink()
audit.event("number", n=done)
print(verify(path).bad, verify(path).torn, verify(path).lines - done)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disk_leaves_no_torn_line(tmp_path: Path):
  """The disk is mounted in a namespace of the child's own, so nothing can be left of it."""
  script = 'mount -t tmpfs -o size=64k tmpfs "$1" && cd "$1" && exec "$2" -c "$3"'
  done = subprocess.run(
    ["unshare", "-m", "sh", "-c", script, "sh", tmp_path, sys.executable, FILL_THE_DISK],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    capture_output=True,
    text=True,
    check=True,
  )
  error, torn, after = done.stdout.splitlines()
  assert "No space left" in error
  assert torn == "[]"
  assert after == " [] 2"  # of the line "opened" and the one after the disk had room


def test_bad_path_is_one_clear_error(tmp_path: Path):
  with pytest.raises(AuditError, match="No such file"):
    Audit(str(tmp_path / "missing" / "audit.jsonl"))
  with pytest.raises(FileNotFoundError):
    verify(tmp_path / "missing.jsonl")


RESULT = Result(Outcome.exit, 3, stdout=b"SECRET", limits_enforced={"wall": "host"}, wall_s=0.5)


def one_entry(path: Path, request: Request, result: Result | None, **options) -> dict:
  audit = Audit(str(path), text=options.pop("text", False))
  audit.write(request, result, "box-1", **options)
  audit.close()
  return json.loads(path.read_text().splitlines()[-1])


def test_entry_says_what_ran_by_hashes(tmp_path: Path):
  request = Request(
    ("cat", "SECRET"), {"f": b"SECRET"}, b"SECRET", env={"KEY": "SECRET"}, tenant="math"
  )
  entry = one_entry(tmp_path / "a", request, RESULT, waited_s=0.25)
  assert (entry["tenant"], entry["sandbox"], entry["outcome"]) == ("math", "box-1", "exit")
  assert (entry["wall_s"], entry["waited_s"], entry["exit_code"]) == (0.5, 0.25, 3)
  assert entry["limits"]["memory_mb"] == 256
  assert entry["limits_enforced"] == {"wall": "host"}
  assert entry["env_names"] == ["KEY"]
  # printf 'cat\0SECRET' | sha256sum; printf SECRET | sha256sum
  assert entry["sha256"]["argv"].startswith("5967afb8152e378f")
  assert entry["sha256"]["file:f"] == entry["sha256"]["stdin"]
  assert entry["sha256"]["stdin"].startswith("0917b13a9091915d")
  assert "SECRET" not in (tmp_path / "a").read_text()


def test_no_message_carries_the_request_into_the_log(tmp_path: Path):
  lost = replace(RESULT, outcome=Outcome.infra_error, exit_code=None)
  for n, (request, rejected, detail) in enumerate(
    (
      (Request(("SECRET",)), "", "SECRET: [Errno 2] No such file or directory: 'SECRET'"),
      (Request(("a", "SECRET\0")), f"{'SECRET' + chr(0)!r} holds a NUL", ""),
      (Request(("a", 'it\'s "SECRET"\0')), repr('it\'s "SECRET"\0') + " holds a NUL", ""),
      (Request(("a",), {"../SECRET": b""}), "file name '../SECRET' must be a plain path", ""),
    )
  ):
    path = tmp_path / str(n)
    one_entry(path, request, None if rejected else replace(lost, detail=detail), rejected=rejected)
    assert "SECRET" not in path.read_text()


def test_text_is_written_only_when_asked_for(tmp_path: Path):
  request = Request(("cat", "\udcff"), {"f": b"text\xff"}, env={"KEY": "SECRET"})
  entry = one_entry(tmp_path / "a", request, RESULT, text=True)
  assert entry["text"] == {"argv": "cat\0\\xff", "stdin": "", "file:f": "text\\xff"}
  assert "SECRET" not in (tmp_path / "a").read_text()
  assert "text" not in one_entry(tmp_path / "b", request, RESULT)
