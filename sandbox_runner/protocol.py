"""Frames between the runner and the supervisor in a sandbox.

A frame is two big-endian 32-bit lengths, a JSON header and a blob. What comes from the sandbox is
hostile input: every length is checked before a byte is read, and every field before it is used.
"""

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

from sandbox_runner.types import Limits, Request, SandboxLost, Snapshot

LENGTHS = struct.Struct("!II")
MAX_HEADER = 64 << 10
MAX_PIECE = 64 << 10  # of output, in one frame
# The last of the path is where pip puts commands for a user.
PATH = "/usr/local/bin:/usr/bin:/bin:/tmp/.local/bin"
BASE_ENV = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8"}
WHY = ("exit", "wall", "output", "cancel", "disk", "pids")


@dataclass(frozen=True)
class Report:
  """The supervisor's account of one task, checked. `status` is that of wait(2)."""

  why: str
  status: int
  failure: str
  wall_s: float
  cpu_s: float
  peak_bytes: int
  counts: tuple[int, int]  # bytes seen of stdout and stderr
  io: tuple[int, int] | None = None  # bytes read and written
  processes: int | None = None


def frame(header: dict, *blobs: bytes) -> list[bytes]:
  """The pieces of one frame, the blobs uncopied."""
  head = json.dumps(header).encode()
  return [LENGTHS.pack(len(head), sum(map(len, blobs))) + head, *blobs]


@dataclass(frozen=True)
class Mode:
  """How a sandbox runs one request, beyond what the request says.

  Attributes:
    keep: the files stay for the next request.
    terminal: (rows, columns) of the terminal to run on; None for pipes.
    snapshot: the work directory becomes this before anything is run.
    on_output: called with each piece of the first stream as it comes.
    on_start: called when the sandbox has the whole request, and would take more for its task.
  """

  keep: bool = False
  terminal: tuple[int, int] | None = None
  snapshot: Snapshot | None = None
  on_output: Callable[[bytes], None] | None = None
  on_start: Callable[[], None] | None = None


def task_frame(
  request: Request, address_space: int, processes: int, fork: bool, cpu_s: int, mode: Mode
) -> list[bytes]:
  """The frame of one request. `address_space` and `processes` are rlimits, 0 for none."""
  limits = request.limits
  header: dict = {
    "argv": request.argv,
    "env": {**BASE_ENV, **request.env},
    "files": [(name, len(content)) for name, content in request.files.items()],
    "wall_s": limits.wall_s,
    "cpu_s": cpu_s,
    "disk_mb": limits.disk_mb,
    "pids": limits.pids,
    "cwd": request.cwd,
    "keep": mode.keep,
    "terminal": mode.terminal,
    "entries": None,
    "copy_out": read_order(request.copy_out, limits) if request.copy_out else None,
    "output_bytes": limits.output_bytes,
    "address_space": address_space,
    "processes": processes,
    "fork": fork,
  }
  blobs = []
  if mode.snapshot:
    entries = mode.snapshot.entries
    header["entries"] = [
      (name, e.kind, e.mode, e.mtime_ns, len(e.content)) for name, e in entries.items()
    ]
    blobs = [entry.content for entry in entries.values()]
  return frame(header, *blobs, *request.files.values(), request.stdin)


def read_order(patterns: tuple[str, ...], limits: Limits, tree: bool = False) -> dict:
  """What the guest has to read back, and its bounds; `tree` is for a snapshot."""
  return {
    "tree": tree,
    "patterns": patterns,
    "bytes": limits.copy_out_bytes,
    "entries": limits.copy_out_entries,
    "seconds": limits.copy_out_s,
  }


async def read_frame(reader: asyncio.StreamReader, max_blob: int) -> tuple[dict, bytes]:
  """Raises SandboxLost if the stream ends or is not a frame within the bounds."""
  try:
    header_length, blob_length = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
    if header_length > MAX_HEADER or blob_length > max_blob:
      raise SandboxLost(f"a frame of {header_length} + {blob_length} bytes from the sandbox")
    header = json.loads(await reader.readexactly(header_length))
    blob = await reader.readexactly(blob_length)
  except asyncio.IncompleteReadError as e:
    raise SandboxLost("the sandbox closed its pipe") from e
  except (ValueError, RecursionError) as e:
    raise SandboxLost("a frame from the sandbox is not JSON") from e
  if not isinstance(header, dict):
    raise SandboxLost("a frame from the sandbox has no header")
  return header, blob


class Output:
  """What has come of the two streams so far, each up to `cap` bytes."""

  def __init__(self, cap: int, on_output: Callable[[bytes], None] | None = None):
    self.cap, self.on_output = cap, on_output
    self.streams = (bytearray(), bytearray())

  def add(self, header: dict, blob: bytes) -> None:
    """Raises SandboxLost for a piece that no sound supervisor sends."""
    number = header["stream"]
    if type(number) is not int or number not in (0, 1):
      raise SandboxLost("a piece of output from the sandbox is of no stream")
    if len(self.streams[number]) + len(blob) > self.cap:
      raise SandboxLost("the sandbox sends more output than was asked for")
    self.streams[number].extend(blob)
    if self.on_output and number == 0:
      self.on_output(blob)


async def read_report(reader: asyncio.StreamReader, output: Output) -> Report:
  """Adds pieces of output to `output` until the report comes. Raises SandboxLost."""
  while True:
    header, blob = await read_frame(reader, MAX_PIECE)
    if "stream" not in header:
      return parse_report(header, output)
    output.add(header, blob)


def parse_report(header: dict, output: Output) -> Report:
  """Raises SandboxLost for a report that no sound supervisor sends."""
  try:
    counts = header["counts"]
    io, processes = header["io"], header["processes"]
    numbers = (*counts, header["status"], header["peak_kb"], *(io or (0, 0)), processes or 0)
    times = (header["wall_s"], header["cpu_s"])
    sound = (
      len(counts) == 2
      and (io is None or len(io) == 2)
      and all(type(n) is int and 0 <= n < 1 << 60 for n in numbers)
      and all(type(t) is float and 0 <= t < 1e6 for t in times)
      and [len(s) for s in output.streams] == [min(c, output.cap) for c in counts]
      and header["why"] in WHY
      and isinstance(header["failure"], str)
      and len(header["failure"]) <= 4096
    )
  except (KeyError, TypeError) as e:
    raise SandboxLost(f"a report from the sandbox lacks a field: {e}") from e
  if not sound:
    raise SandboxLost("a report from the sandbox contradicts itself")
  return Report(
    why=header["why"],
    status=header["status"],
    failure=header["failure"],
    wall_s=times[0],
    cpu_s=times[1],
    peak_bytes=header["peak_kb"] << 10,
    counts=(counts[0], counts[1]),
    io=(io[0], io[1]) if io else None,
    processes=processes,
  )
