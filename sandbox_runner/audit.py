"""The audit log: one JSON line for each request and event, chained by hashes (see `audit_chain`).

A line holds hashes of what ran, never its text (unless asked for), its output or the values of its
environment. Several runners may append to one log: each line is written under a lock on the file.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from sandbox_runner.audit_chain import (
  START,
  next_number,
  read_end,
  seal,
)
from sandbox_runner.types import Request, Result, os_bytes

ROTATE_BYTES = 256 << 20
LOCK_S = 5.0  # another runner holds the lock for the time of one write
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


class AuditError(ValueError):
  """The audit log cannot be written. What it should say must not be taken as done."""


def request_digest(request: Request) -> dict[str, str]:
  """SHA-256 of the arguments, of each file and of the input: what ran, without its text."""
  return {name: hashlib.sha256(part).hexdigest() for name, part in _parts(request).items()}


def request_text(request: Request) -> dict[str, str]:
  """The same parts as text; bytes that are none are escaped."""
  return {name: part.decode("utf-8", "backslashreplace") for name, part in _parts(request).items()}


def _parts(request: Request) -> dict[str, bytes]:
  files = {f"file:{n}": c for n, c in request.files.items() if isinstance(c, bytes)}
  return {"argv": b"\0".join(_bytes(a) for a in request.argv), "stdin": request.stdin, **files}


def _bytes(text: str) -> bytes:
  """Also of the text of a request that is refused for not being text."""
  try:
    return os_bytes(text)
  except UnicodeEncodeError:
    return text.encode("utf-8", "surrogatepass")


def without_text(detail: str, request: Request) -> str:
  """A message without what it quotes of the request: arguments, names, values."""
  program = request.argv[0] if request.argv else ""
  return _QUOTED.sub("'...'", detail.replace(program, "...") if program else detail)


def result_fields(result: Result) -> dict:
  """All of a result but bytes; of a mapping to bytes, hash and size of each."""
  entry = {}
  for name, value in vars(result).items():
    if isinstance(value, Mapping):
      entry[name] = {k: _summary(v) for k, v in value.items()}
    elif not isinstance(value, bytes):
      entry[name] = value
  return entry


def _summary(value):
  if not isinstance(value, bytes):
    return value
  return {"sha256": hashlib.sha256(value).hexdigest(), "bytes": len(value)}


class Audit:
  """Appends to the log at `path`; writes nothing if it is None.

  Args:
    path: the file in use; older ones are `path`.1, `path`.2 and so on.
    rotate_bytes: a file that would grow over this is renamed and a new one is begun.
    text: write program, files and input as text too.

  Raises AuditError if the log cannot be opened, locked or written.
  """

  def __init__(self, path: str | None, rotate_bytes: int = ROTATE_BYTES, text: bool = False):
    self.path = Path(os.path.abspath(path)) if path else None
    self.rotate_bytes, self.text = rotate_bytes, text
    self._fd, self._size, self._previous = -1, -1, START
    if self.path:
      self.event("opened", pid=os.getpid())  # now: a wrong path is found before a program has run

  def write(
    self,
    request: Request,
    result: Result | None,
    sandbox: str,
    rejected: str = "",
    waited_s: float = 0.0,
    attempts: int = 1,
  ) -> None:
    """The line of one request; `result` is None for one that was refused."""
    if self.path is None:
      return
    entry: dict = {"tenant": request.tenant, "sandbox": sandbox, "limits": vars(request.limits)}
    if result is None:
      entry |= {"outcome": "rejected", "detail": rejected}
    else:
      entry |= {**result_fields(result), "waited_s": waited_s, "attempts": attempts}
      entry |= {"sha256": request_digest(request), "env_names": sorted(request.env)}
    if self.text:
      entry["text"] = request_text(request)
    else:
      entry["detail"] = without_text(entry["detail"], request)
    self.event("run", **entry)

  def event(self, name: str, **entry) -> None:
    """Any other line: `entry` holds what JSON can."""
    if self.path is None:
      return
    entry = {"event": name, "time": time.time(), **entry}
    try:
      self._lock(self.path)
      line, digest = self._sealed(self.path, entry)
      if self._size > 0 and self._size + len(line) > self.rotate_bytes:
        os.rename(self.path, f"{self.path}.{next_number(self.path)}")
        self._lock(self.path)
        line, digest = self._sealed(self.path, entry)  # another runner may have begun the new file
      self._write(line)
      self._previous = digest
    except OSError as e:
      raise AuditError(f"the audit log {self.path} cannot be written: {e}") from e
    finally:
      self._unlock()

  def close(self) -> None:
    if self._fd >= 0:
      os.close(self._fd)
      self._fd = -1

  def _lock(self, path: Path) -> None:
    """Locks the file that is at `path` now, for another runner may have rotated it away."""
    deadline = time.monotonic() + LOCK_S
    while True:
      if self._fd < 0:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = -1
      try:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as e:
        if time.monotonic() > deadline:
          raise OSError(f"another process has held its lock for {LOCK_S:.0f} s") from e
        time.sleep(0.001)
        continue
      with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(self._fd)):
          return
      self.close()

  def _unlock(self) -> None:
    if self._fd >= 0:
      fcntl.flock(self._fd, fcntl.LOCK_UN)

  def _sealed(self, path: Path, entry: dict) -> tuple[bytes, str]:
    """The entry as the next line, after whatever others have written. Called under the lock."""
    size = os.fstat(self._fd).st_size
    before = b""
    if size != self._size:
      self._size = size
      end = read_end(path)
      self._previous = end.digest
      if end.torn:
        recovered = {"event": "recovered", "time": time.time(), "after": end.after}
        before, self._previous = seal(end.digest, recovered)
      before = b"\n" * end.lacks_newline + before
    line, digest = seal(self._previous, entry)
    return before + line, digest

  def _write(self, line: bytes) -> None:
    """All of it or nothing, but for a crash."""
    try:
      written = os.write(self._fd, line)
      if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      self._size += written
    except OSError:
      with contextlib.suppress(OSError):  # a file that may only be appended to keeps the torn line
        os.ftruncate(self._fd, self._size)
      self._size = -1
      raise
