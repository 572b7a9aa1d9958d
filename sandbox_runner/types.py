"""What a caller gives to the pool and gets back: limits, requests, outcomes, results."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class NoBackendError(ValueError):
  """No sandbox backend works on this machine. The text is one line and says how to get one."""


class PoolClosedError(ValueError):
  """The pool is closed, or was never opened: it serves only within its `async with`."""


class RequestError(ValueError):
  """A request that is refused before anything is started."""


class SandboxLost(Exception):
  """The sandbox went away, or broke the protocol, while it had a request (internal)."""


class Outcome(enum.StrEnum):
  """How a run ended, by the runner's own observation and never by what the program printed."""

  exit = "exit"  # the main process left with a code
  signal = "signal"  # ended by a signal that neither the runner nor a limit sent
  timeout = "timeout"  # the wall clock or the processor time ran out
  oom = "oom"  # the memory limit was hit and the main process was killed for it
  pids_limit = "pids_limit"  # ended by the runner for its number of processes, or its endless forks
  disk_limit = "disk_limit"  # ended by the runner for its disk use
  output_limit = "output_limit"  # a stream went over `output_bytes`
  sandbox_lost = "sandbox_lost"  # the environment itself went away
  infra_error = "infra_error"  # the runner failed, not the program
  cancelled = "cancelled"  # ended, or never begun, because nobody waits for it any more


MAX_NAME, MAX_PATH = 255, 4000  # bytes; the kernel takes paths of up to 4095
INFRA_OUTCOMES = frozenset((Outcome.sandbox_lost, Outcome.infra_error, Outcome.cancelled))


@dataclass(frozen=True)
class Limits:
  """Limits of one run. There is no switch for the network: it is always off.

  Attributes:
    wall_s: seconds from the program's start to its end.
    cpu_s: seconds of processor time, of all processes together where the backend can.
    memory_mb: MiB for all processes and files in memory together, where the backend can.
    pids: processes and threads at the same time.
    disk_mb: MiB in all writable places together.
    output_bytes: bytes kept of each of stdout and stderr; more ends the run.
    copy_out_bytes: bytes of all files that are read back together.
    copy_out_entries: names that are looked at for that, and so files that come back.
    copy_out_s: seconds that the reading may take, after the run.
  """

  wall_s: float = 10.0
  cpu_s: float = 10.0
  memory_mb: int = 256
  pids: int = 64
  disk_mb: int = 64
  output_bytes: int = 1 << 20
  copy_out_bytes: int = 16 << 20
  copy_out_entries: int = 10_000
  copy_out_s: float = 2.0

  def __post_init__(self):
    for name in ("wall_s", "cpu_s", "copy_out_s"):
      value = getattr(self, name)
      if not (math.isfinite(value) and 0 < value <= 86400):
        raise ValueError(f"{name}={value!r} must be in (0, 86400] seconds")
    for name, low, high in (
      ("memory_mb", 16, 1 << 20),
      ("pids", 1, 1 << 15),
      ("disk_mb", 1, 1 << 20),
      ("output_bytes", 0, 1 << 28),
      ("copy_out_bytes", 0, 1 << 30),
      ("copy_out_entries", 1, 1 << 20),
    ):
      value = getattr(self, name)
      if not (isinstance(value, int) and low <= value <= high):
        raise ValueError(f"{name}={value!r} must be a whole number in [{low}, {high}]")


@dataclass(frozen=True)
class Request:
  """One program to run.

  Attributes:
    argv: the program and its arguments; `("python3", "main.py")` takes the fast path.
    files: path below the work directory -> content. The work directory is the current directory.
    stdin: the standard input, then end-of-file.
    env: laid over a minimal environment (PATH, HOME, LANG). Nothing of the host's is given.
    limits: see `Limits`.
    tenant: for whom it runs; written to the audit log.
    copy_out: paths below the work directory whose files come back in `Result.files`. Each part of
      a path may be a pattern (`*`, `?`, `[...]`); `**` is any number of directories, and at the end
      of a path all files below. Hidden files are like any other.
    cwd: directory below the work directory in which the program starts; made if it is not there.
  """

  argv: tuple[str, ...]
  files: Mapping[str, bytes] = field(default_factory=dict)
  stdin: bytes = b""
  env: Mapping[str, str] = field(default_factory=dict)
  limits: Limits = field(default_factory=Limits)
  tenant: str = ""
  copy_out: tuple[str, ...] = ()
  cwd: str = ""


@dataclass(frozen=True)
class SnapshotEntry:
  """What a name in a work directory was: `kind` is "file", "dir" or "link" (content: its text)."""

  kind: str
  content: bytes
  mode: int
  mtime_ns: int


@dataclass(frozen=True)
class Snapshot:
  """A work directory as it was. Held on the host; can be restored in any session, many times."""

  entries: Mapping[str, SnapshotEntry]


@dataclass(frozen=True)
class Result:
  """How a run ended, and what it left.

  Attributes:
    outcome: see `Outcome`.
    exit_code: of the main process, when the outcome is `exit`. As a shell has it, 127 with a line
      on stderr if there is no such program, and 126 if it cannot be executed or `cwd` not entered.
    signal: its number, when the outcome is `signal`.
    stdout, stderr: the first `output_bytes` bytes, raw.
    stdout_bytes, stderr_bytes: how many bytes were seen in all.
    wall_s, cpu_s: seconds; the wall clock is the host's.
    peak_memory_bytes: of all processes together where a control group counts it, else the largest
      resident set of a single process.
    bytes_read, bytes_written: by the main process and the children that it waited for, from and to
      files, pipes and terminals, as the kernel counts calls; None if it does not say.
    processes: processes and threads that were started, the main one included; None where that is
      not seen, as on the terminal of a session.
    limits_enforced: limit -> by what it was enforced; "no" where it was not.
    files: path -> content of the regular files that `copy_out` asked for, as they were when the
      last process of the run was gone. A name that is not UTF-8 is decoded as `os.fsdecode` does.
    left_out: path -> why what `copy_out` asked for did not come back (a link, a pipe, too large).
    backend: `bwrap`, `docker+runc` or `docker+runsc`.
    detail: one line for a person, for an infra failure.
  """

  outcome: Outcome
  exit_code: int | None = None
  signal: int | None = None
  stdout: bytes = b""
  stderr: bytes = b""
  stdout_bytes: int = 0
  stderr_bytes: int = 0
  stdout_truncated: bool = False
  stderr_truncated: bool = False
  wall_s: float = 0.0
  cpu_s: float = 0.0
  peak_memory_bytes: int = 0
  bytes_read: int | None = None
  bytes_written: int | None = None
  processes: int | None = None
  limits_enforced: Mapping[str, str] = field(default_factory=dict)
  files: Mapping[str, bytes] = field(default_factory=dict)
  left_out: Mapping[str, str] = field(default_factory=dict)
  backend: str = ""
  detail: str = ""

  @property
  def is_infra_failure(self) -> bool:
    """True if this says nothing about the program: it must never become a reward."""
    return self.outcome in INFRA_OUTCOMES


def check_request(request: Request) -> None:
  """Raises RequestError for what no sandbox could run faithfully, or what points outside it."""
  check_types(request)
  if not request.argv or not request.argv[0]:
    raise RequestError("argv is empty; give the program and its arguments")
  for text in (*request.argv, *request.env, *request.env.values()):
    if "\0" in text:
      raise RequestError(f"{text[:40]!r} holds a NUL, which no argument or variable can")
    try:
      text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
      raise RequestError(f"{text[:40]!r} holds a surrogate, which is no text: {e.reason}") from e
  for name in request.env:
    if not name or "=" in name:
      raise RequestError(f"{name!r} is not a name of an environment variable")
  check_files(request.files)
  for path in (*request.copy_out, *([request.cwd] if request.cwd else [])):
    check_path(path)


def check_types(request: Request) -> None:
  """Raises RequestError for the slips that would be found late, or never, by what they lead to."""
  for name in ("argv", "copy_out"):
    value = getattr(request, name)
    if isinstance(value, str):
      raise RequestError(f"{name}={value[:40]!r} is one text; give a tuple of texts")
  if not isinstance(request.stdin, bytes):
    raise RequestError(f"stdin must be bytes, not {type(request.stdin).__name__}; encode it")
  for text in (*request.argv, *request.env, *request.env.values(), *request.copy_out, request.cwd):
    if not isinstance(text, str):
      raise RequestError(f"{text!r} must be text, not {type(text).__name__}")


def check_path(path: str) -> None:
  """Raises RequestError for what is no path below the work directory."""
  try:
    os_bytes(path)
  except UnicodeEncodeError as e:
    raise RequestError(f"file name {path[:80]!r} holds a surrogate, which no name can") from e
  parts = path.split("/")
  if any(part in ("", ".", "..") for part in parts) or "\0" in path:
    raise RequestError(f"file name {path[:80]!r} must be a plain path below the work directory")
  if any(len(os_bytes(part)) > MAX_NAME for part in parts) or len(os_bytes(path)) > MAX_PATH:
    raise RequestError(f"file name {path[:40]!r}... is longer than a file system takes")


def check_files(files: Mapping[str, bytes]) -> None:
  """Raises RequestError for files that could not all be made below the work directory."""
  for name, content in files.items():
    check_path(name)
    if not isinstance(content, bytes):
      raise RequestError(f"the content of {name!r} must be bytes, not {type(content).__name__}")
  names = set(files)
  for name in names:
    parents = name.split("/")[:-1]
    if any("/".join(parents[: i + 1]) in names for i in range(len(parents))):
      raise RequestError(f"{name!r} lies below a path that is itself a file of the request")


def os_bytes(text: str) -> bytes:
  return text.encode("utf-8", "surrogateescape")
