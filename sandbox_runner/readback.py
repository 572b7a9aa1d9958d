"""Files that come back from a sandbox. All that is said about them is hostile input."""

import asyncio
import hashlib

from sandbox_runner.protocol import MAX_PIECE, read_frame
from sandbox_runner.types import Limits, RequestError, SandboxLost, SnapshotEntry, check_path

ANSWER_S = 2.0  # what a sandbox may take on top of the time that it was given


KINDS = ("file", "dir", "link")


class ReadBack:
  """The files of one reading, each checked against its hash, and why others are not there.

  With `tree`, directories and links too: see `entries`.
  """

  def __init__(self, limits: Limits, tree: bool = False):
    self.limits, self.tree = limits, tree
    self.entries: dict[str, SnapshotEntry] = {}
    self.left_out: dict[str, str] = {}
    self.cut = ""
    self._piece = bytearray()
    self._bytes = 0

  @property
  def files(self) -> dict[str, bytes]:
    return {name: entry.content for name, entry in self.entries.items()}

  async def receive(self, reader: asyncio.StreamReader) -> None:
    """Until the last file is here. Raises SandboxLost for what no sound supervisor sends."""
    try:
      async with asyncio.timeout(self.limits.copy_out_s + ANSWER_S):
        while True:
          header, blob = await read_frame(reader, MAX_PIECE)
          if "end" in header:
            break
          self.add(header, blob)
    except TimeoutError as e:
      raise SandboxLost("the files did not come back in time") from e
    if self._piece:
      raise SandboxLost("a file from the sandbox has no name")
    if header.get("cut"):
      self.cut = "more than could be looked at: entries or time ran out"
      self.left_out["**"] = self.cut

  def add(self, header: dict, blob: bytes) -> None:
    if "part" in header:
      self._bytes += len(blob)
      if self._bytes > self.limits.copy_out_bytes:
        raise SandboxLost("more bytes of files from the sandbox than were asked for")
      self._piece += blob
    elif "file" in header:
      name = self._name(header["file"])
      content, self._piece = bytes(self._piece), bytearray()
      if header.get("sha256") != hashlib.sha256(content).hexdigest():
        raise SandboxLost("a file from the sandbox is not that of its hash")
      self.entries[name] = self._entry(header, content)
    else:
      self.left_out[self._name(header.get("left_out"))] = str(header.get("why"))[:100]

  def _entry(self, header: dict, content: bytes) -> SnapshotEntry:
    kind, mode, mtime_ns = header.get("kind"), header.get("mode", 0), header.get("mtime_ns", 0)
    sound = (
      kind in (KINDS if self.tree else ("file",))
      and type(mode) is int
      and type(mtime_ns) is int
      and abs(mtime_ns) < 1 << 62
    )
    if not (isinstance(kind, str) and sound):
      raise SandboxLost("an entry from the sandbox contradicts itself")
    return SnapshotEntry(kind, content, mode & 0o777, mtime_ns)

  def _name(self, name: object) -> str:
    try:
      if not isinstance(name, str) or name in self.entries:
        raise RequestError(f"{name!r} is no name, or not a new one")
      check_path(name)
    except (RequestError, UnicodeEncodeError) as e:
      raise SandboxLost(f"a file from the sandbox has a name that it cannot have: {e}") from e
    if len(self.entries) + len(self.left_out) >= self.limits.copy_out_entries:
      raise SandboxLost("more files from the sandbox than were asked for")
    return name
