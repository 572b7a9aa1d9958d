"""What a backend is: it can say whether it works here, and open sandboxes."""

import asyncio
import contextlib
import json
import os
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from sandbox_runner.types import Limits

GUEST_DIRECTORY = Path(__file__).parent.parent / "guest"
# Each imports only from those before it.
GUEST_MODULES = (
  *("frames", "kernel", "boxes", "files", "image"),
  *("newborn", "task", "watch", "terminal", "supervisor"),
)
# Reads unbuffered, so that it takes not a byte of the first frame, which follows the source.
BOOTSTRAP = """import json, os, sys, types
text = b""
while len(text) < {size}:
  text += os.read(0, {size} - len(text)) or sys.exit(1)
for name, source in json.loads(text):
  sys.modules[name] = module = types.ModuleType(name)
  exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
module.main()
"""


def guest_source() -> bytes:
  """The modules of the guest, as the bootstrap takes them."""
  package = "sandbox_runner.guest"
  modules = [(parent, "") for parent in ("sandbox_runner", package)]
  for name in GUEST_MODULES:
    modules.append((f"{package}.{name}", (GUEST_DIRECTORY / f"{name}.py").read_text()))
  return json.dumps(modules).encode()


GUEST = guest_source()
BOOTSTRAP_LIMIT_S = 20.0  # for a supervisor to say that it is ready


def kill_child(process: asyncio.subprocess.Process) -> None:
  """Ends a child, if it has not ended.

  `Process.kill` polls first, which can take the exit status of a child that has just ended from
  asyncio's own watcher; that then warns of an unknown child process.
  """
  if process.returncode is None:
    with contextlib.suppress(ProcessLookupError):
      os.kill(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class BackendStatus:
  """Whether a backend works on this machine; `fix` is the command that would make it work."""

  name: str
  available: bool
  detail: str
  fix: str = ""


@dataclass(frozen=True)
class Usage:
  """What the host's own counters say about one run. None: the backend has no such counter."""

  oom_kills: int
  cpu_s: float | None
  peak_bytes: int
  refused_forks: int = 0


class Vessel(ABC):
  """One opened sandbox, before anything is said to it: a process with a pipe pair, and counters."""

  process: asyncio.subprocess.Process | None
  setup: dict  # the first frame
  enforced: dict[str, str]  # limit -> by what
  keeps_nothing: bool  # nothing of a task can outlive it, so the next tenant may follow

  def __init__(self, sandbox: str):
    self.sandbox = sandbox
    self.log = os.memfd_create("sandbox-stderr")
    self._closing: asyncio.Future[None] | None = None
    self._said = ""

  @property
  def stdin(self) -> asyncio.StreamWriter:
    """To the supervisor, once the sandbox is open."""
    assert self.process
    assert self.process.stdin
    return self.process.stdin

  @property
  def stdout(self) -> asyncio.StreamReader:
    """From it."""
    assert self.process
    assert self.process.stdout
    return self.process.stdout

  @abstractmethod
  async def started(self) -> None:
    """Called once the supervisor answers. Raises SandboxLost if a limit is not in force."""

  @abstractmethod
  def fits(self, limits: Limits) -> bool:
    """True if this sandbox can enforce these limits."""

  @abstractmethod
  def prepare(self, limits: Limits) -> None:
    """Sets the limits for the next task and starts its counters."""

  @abstractmethod
  def rlimits(self, limits: Limits) -> tuple[int, int]:
    """(address space in bytes, processes) to be laid on by rlimit; 0 for none."""

  @abstractmethod
  def usage(self) -> Usage:
    """The counters since `prepare`."""

  @abstractmethod
  async def end(self) -> None:
    """Ends all that runs in the sandbox and removes what it has on the host. Never raises."""

  async def close(self) -> None:
    """`end`, once: whoever calls while it is under way, or later, waits for the same end.

    A caller that is cancelled stops to wait; the end goes on.
    """
    if self._closing is None:
      self._closing = asyncio.ensure_future(self._close())
    await asyncio.shield(self._closing)

  async def _close(self) -> None:
    try:
      await self.end()
    finally:
      self._said = self.last_words()
      os.close(self.log)
      self.log = -1

  def last_words(self) -> str:
    """What the launcher or the supervisor said on its standard error, on one line."""
    if self.log < 0:
      return self._said
    return " ".join(os.pread(self.log, 2000, 0).decode("utf-8", "replace").split())[-300:]


class Backend(ABC):
  """A way to make sandboxes. `name` is what results and the audit log call it."""

  name: str

  def __init__(self):
    self.in_doubt: set[str] = set()  # sandboxes of which something may be left on the host

  @abstractmethod
  async def open(self, sandbox: str, limits: Limits) -> Vessel:
    """Opens a sandbox of that name. Raises SandboxLost or OSError if it cannot."""
