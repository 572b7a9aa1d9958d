"""The audit log: one JSON line for each request, in one write. No program text, no output."""

import hashlib
import json
import os
import time
from dataclasses import asdict

from sandbox_runner.types import Request, Result, os_bytes


def request_digest(request: Request) -> dict[str, str]:
  """SHA-256 of the arguments, of each file and of the input: what ran, without its text."""
  argv = b"\0".join(os_bytes(a) for a in request.argv)
  parts = {
    "argv": argv,
    "stdin": request.stdin,
    **{f"file:{n}": c for n, c in request.files.items()},
  }
  return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


class Audit:
  """Appends to `path`; writes nothing if it is None."""

  def __init__(self, path: str | None):
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    self._fd = os.open(path, flags, 0o600) if path else None

  def write(
    self,
    request: Request,
    result: Result | None,
    sandbox: str,
    rejected: str = "",
    waited_s: float = 0.0,
  ) -> None:
    """`result` is None for a request that was refused."""
    if self._fd is None:
      return
    entry = {"time": time.time(), "tenant": request.tenant, "sandbox": sandbox}
    entry["limits"] = asdict(request.limits)
    if result is None:
      entry |= {"outcome": "rejected", "detail": rejected}
    else:
      fields = asdict(result)
      for name in ("stdout", "stderr"):
        del fields[name]
      entry |= {**fields, "waited_s": waited_s, "sha256": request_digest(request)}
    os.write(self._fd, json.dumps(entry).encode() + b"\n")

  def close(self) -> None:
    if self._fd is not None:
      os.close(self._fd)
      self._fd = None
