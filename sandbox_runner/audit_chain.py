"""The hash chain of an audit log: how a line is sealed, and how a whole log is verified.

A line is `{"hash": H, "previous": P, ...}` where H is the SHA-256 of the line's text from
`"previous"` on, and P is the H of the line before. The chain goes on over the borders of rotated
files: FILE.1 is the oldest, FILE the one in use.

Without a key the chain shows a change only to who knows a later hash: whoever can rewrite the file
can seal it anew from the change on, or cut off its end. So a deployment notes the last hash outside
of the machine from time to time, and has `verify` look for it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

START: str = "0" * 64  # stands for the line before the first
MAX_LINE = 64 << 20
_SEALED = re.compile(
  rb'\{"hash": "([0-9a-f]{64})", ("previous": "([0-9a-f]{64})"[^\n]*\})', re.DOTALL
)


class BrokenLineError(ValueError):
  """A line that is not sealed, or not as it was sealed."""


def seal(previous: str, entry: dict) -> tuple[bytes, str]:
  """(the line with its end, its hash) of an entry that follows the line with hash `previous`."""
  body = json.dumps({"previous": previous, **entry})[1:].encode()
  digest = hashlib.sha256(body).hexdigest()
  return b'{"hash": "' + digest.encode() + b'", ' + body + b"\n", digest


def unseal(line: bytes) -> tuple[str, str, dict]:
  """(hash, previous, entry) of a line without its end. Raises BrokenLineError."""
  match = _SEALED.fullmatch(line)
  if match is None:
    raise BrokenLineError("it is not a line of an audit log")
  digest = match[1].decode()
  if hashlib.sha256(match[2]).hexdigest() != digest:
    raise BrokenLineError("its text is not the text that was sealed")
  return digest, match[3].decode(), json.loads(line)


def raw_digest(line: bytes) -> str:
  """What stands for the hash of a line that has none: one that a crash has torn."""
  return hashlib.sha256(line).hexdigest()


def rotated(path: Path) -> list[Path]:
  """The older files of a log, oldest first."""
  found = {}
  for other in path.parent.glob(f"{path.name}.*"):
    number = other.name.removeprefix(f"{path.name}.")
    if number.isdecimal():
      found[int(number)] = other
  return [found[number] for number in sorted(found)]


def next_number(path: Path) -> int:
  """For the file that is rotated now."""
  older = rotated(path)
  return int(older[-1].suffix[1:]) + 1 if older else 1


@dataclass(frozen=True)
class End:
  """Where a log can be gone on with.

  Attributes:
    digest: what the next line has to name as the one before it.
    lacks_newline: the last line has no end.
    torn: it is only a part of a line, which holds its place in the chain by the hash of that part.
    after: the hash of the line before a torn one.
  """

  digest: str = START
  lacks_newline: bool = False
  torn: bool = False
  after: str = START


def read_end(path: Path) -> End:
  """The end of a log, whose newest file may be empty or missing after a rotation."""
  lines: list[bytes] = []
  for file in (path, *reversed(rotated(path))):
    if len(lines) < 2:
      lines = _last_lines(file, 2 - len(lines)) + lines
  if not lines:
    return End()
  lacks_newline = not lines[-1].endswith(b"\n")
  hashes = [START, *map(_digest, lines)]
  torn = lacks_newline and not _is_json(lines[-1])
  return End(hashes[-1], lacks_newline, torn, hashes[-2])


def _last_lines(path: Path, count: int) -> list[bytes]:
  """The last lines of a file with their ends; none of a missing file."""
  if not path.exists():
    return []
  with open(path, "rb") as f:
    start = f.seek(0, os.SEEK_END)
    data = b""
    while start and data.removesuffix(b"\n").count(b"\n") < count and len(data) < MAX_LINE:
      step = min(start, 1 << 16)
      start = f.seek(start - step)
      data = f.read(step) + data
  *ended, rest = data.split(b"\n")
  lines = [line + b"\n" for line in ended] + ([rest] if rest else [])
  return lines[-count:]


def _digest(line: bytes) -> str:
  line = line.removesuffix(b"\n")
  try:
    return unseal(line)[0]
  except BrokenLineError:
    return raw_digest(line)


@dataclass
class Verdict:
  """What `verify` found.

  Attributes:
    lines, files: how many were read, up to the first bad line.
    head: hash of the last line; to be noted elsewhere.
    torn: the places of lines that a crash cut off, and that the log itself says so of.
    bad: the place of the first bad line and what is wrong with it; empty if the log is sound.
  """

  lines: int = 0
  files: int = 0
  head: str = START
  torn: list[str] = field(default_factory=list)
  bad: str = ""


@dataclass(frozen=True)
class _Broken:
  """A line that does not unseal. The line after it may explain that a crash has torn it."""

  place: str
  text: bytes
  ended: bool
  reason: str

  def explained_by(self, previous: str, entry: dict, head: str) -> bool:
    names_it = entry.get("event") == "recovered" and entry.get("after") == head
    return names_it and previous == raw_digest(self.text)


def verify(path: Path, after: str = START, noted: str = "") -> Verdict:
  """Reads a log from its oldest file on, up to the first bad line.

  Args:
    path: the file in use.
    after: the last hash of files that were moved away; by default there were none.
    noted: a hash that must still be in the log, which shows that its end was not cut off.

  Raises FileNotFoundError if there is no such log.
  """
  verdict = Verdict(head=after)
  found_noted = noted in ("", after)
  broken = None
  for place, line, ended in _lines(path, verdict):
    try:
      digest, previous, entry = unseal(line)
    except BrokenLineError as e:
      if broken:
        break
      broken = _Broken(place, line, ended, str(e))
      continue
    if broken:
      if not broken.explained_by(previous, entry, verdict.head):
        break
      verdict.torn.append(broken.place)
      broken = None
    elif previous != verdict.head:
      reason = "it does not follow on the line before it: a line is missing, moved or replaced"
      verdict.bad = f"{place}: {reason}"
      return verdict
    verdict.head = digest
    verdict.lines += 1
    found_noted = found_noted or digest == noted
  if broken and (broken.ended or _is_json(broken.text)):
    verdict.bad = f"{broken.place}: {broken.reason}"
  elif broken:
    verdict.torn.append(broken.place)
  if not verdict.bad and not found_noted:
    verdict.bad = f"{path}: no line has the hash {noted}: its end was cut off, or it was made anew"
  return verdict


def _lines(path: Path, verdict: Verdict) -> Iterator[tuple[str, bytes, bool]]:
  """(place, line without its end, whether it has one) of all files of a log."""
  files = rotated(path)
  if path.exists() or not files:
    files.append(path)
  for file in files:
    with open(file, "rb") as f:
      verdict.files += 1
      number = 0
      while line := f.readline(MAX_LINE):
        number += 1
        yield f"{file}:{number}", line.removesuffix(b"\n"), line.endswith(b"\n")


def _is_json(line: bytes) -> bool:
  try:
    json.loads(line)
  except (ValueError, RecursionError):
    return False
  return True
