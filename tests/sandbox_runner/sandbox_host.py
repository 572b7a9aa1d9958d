"""What the tests look at on the host: processes, mounts, files, listeners. Linux only."""

import contextlib
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

ESCAPES = (
  "/",
  "/etc",
  "/usr/bin",
  "/usr/lib",
  "/root",
  "/home",
  "/opt",
  "/srv",
  "/mnt",
  "/boot",
  "/run",
  "/var/lib",
  "/dev",
  "/tmp",
)


def processes() -> dict[int, tuple[int, str]]:
  """pid -> (parent, state letter) of every process of the machine."""
  found = {}
  for entry in os.listdir("/proc"):
    if not entry.isdigit():
      continue
    try:
      after_name = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
      continue
    found[int(entry)] = (int(after_name[1]), after_name[0])
  return found


def arguments_of_all() -> dict[int, list[bytes]]:
  """pid -> arguments of every process that has some."""
  found = {}
  for pid, (_, state) in processes().items():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
      if state != "Z" and arguments[0]:
        found[pid] = arguments
  return found


def descendants(root: int) -> dict[int, str]:
  """pid -> state of all processes below `root`."""
  table = processes()
  found: dict[int, str] = {}
  layer = {root}
  while layer:
    layer = {pid for pid, (parent, _) in table.items() if parent in layer}
    found.update({pid: table[pid][1] for pid in layer})
  return found


def mounts() -> set[str]:
  """The host's mount points, but for those in the container engine's own directories."""
  points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
  return {p for p in points if not p.startswith(("/var/lib/docker/", "/run/docker/"))}


def escaped_files() -> list[str]:
  """Files that the cases try to make outside of their sandbox, as far as this user may look."""
  seen = [d for d in ESCAPES if os.access(d, os.R_OK)]
  return [f"{d}/{n}" for d in seen for n in os.listdir(d) if n.startswith("escape")]


class Footprint:
  """Blocks and inodes on the host's disks in the directories of a pool, and their highest growth.

  Others use the same disks during the tests, so what is free there says nothing. Only a look at
  every directory that a pool, its containers and their logs may write to does.
  """

  def __init__(self, directories: Iterable[Path]):
    self._directories = set(directories)
    self._before = self._measure()
    self.growth = (0, 0)  # bytes, inodes

  def look(self) -> None:
    now = self._measure()
    grown = [after - before for after, before in zip(now, self._before, strict=True)]
    self.growth = (max(self.growth[0], grown[0]), max(self.growth[1], grown[1]))

  def _measure(self) -> tuple[int, int]:
    blocks = inodes = 0
    for top in self._directories:
      for directory, _, names in os.walk(top):
        for name in (".", *names):
          with contextlib.suppress(FileNotFoundError):
            blocks += os.lstat(os.path.join(directory, name)).st_blocks
            inodes += 1
    return blocks * 512, inodes


def container_directories(container: str) -> list[Path]:
  """Where a container has its own files on the host: its writable layer, its logs and so on."""
  form = "{{.GraphDriver.Data.UpperDir}} {{.ResolvConfPath}}"
  command = ["docker", "inspect", "--format", form, container]
  done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
  layer, configuration = map(Path, done.stdout.split())
  if not (layer.is_dir() and configuration.parent.is_dir()):
    raise ValueError(f"the daemon's storage driver keeps {container} elsewhere than in {layer}")
  return [layer, configuration.parent]


class Listener:
  """Counts the connections to a TCP port on loopback, or to an abstract UNIX socket."""

  def __init__(self, kind: str):
    self.count = 0
    if kind == "tcp":
      self._socket = socket.create_server(("127.0.0.1", 0))
      self.name = str(self._socket.getsockname()[1])
    else:
      self.name = "canary-" + secrets.token_hex(8)
      self._socket = socket.socket(socket.AF_UNIX)
      self._socket.bind("\0" + self.name)
      self._socket.listen()
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self) -> None:
    while True:
      try:
        connection, _ = self._socket.accept()
      except OSError:
        return
      self.count += 1
      connection.close()

  def close(self) -> None:
    self._socket.shutdown(socket.SHUT_RDWR)
    self._socket.close()
