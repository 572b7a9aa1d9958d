"""Control groups for sandboxes that have none of their own (bwrap), version 1 and 2.

Each sandbox gets one group (one directory in each hierarchy of version 1). The task's process moves
itself in, through descriptors that the host opened: the kernel checks the opener's right. The
supervisor stays outside, so it is neither counted nor chosen when memory runs out.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpuacct")  # cpuacct is part of every group of version 2
PREFIX = "sandbox_runner."


@dataclass(frozen=True)
class Parents:
  """Where groups can be made: controller -> directory (all the same one in version 2)."""

  version: int
  directories: dict[str, Path]


def _mounts(kind: str) -> list[tuple[str, str, set[str]]]:
  """(root within the hierarchy, mount point, options) of the mounts of a file system type."""
  found = []
  for line in Path("/proc/self/mountinfo").read_text().splitlines():
    left, _, right = line.partition(" - ")
    fields, after = left.split(), right.split()
    if after[0] == kind:
      found.append((fields[3], fields[4], set(after[2].split(","))))
  return found


def _paths(pid: int) -> dict[str, str]:
  """Controller -> path of a process's group in that hierarchy; "" stands for version 2."""
  own = {}
  for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
    _, names, path = line.split(":", 2)
    own.update(dict.fromkeys(names.split(","), path))
  return own


def _own_directory(root: str, mount_point: str, path: str) -> Path:
  inner = os.path.relpath(path, root) if path.startswith(root) else "."
  return Path(mount_point) / inner


def find_parents() -> tuple[Parents | None, str]:
  """The place for our groups, or None and one line that says why there is none."""
  own = _paths(os.getpid())
  directories = {}
  for root, mount_point, options in _mounts("cgroup"):
    for controller in options & set(CONTROLLERS):
      directory = _own_directory(root, mount_point, own.get(controller, "/"))
      if os.access(directory, os.W_OK):
        directories[controller] = directory
  if {"memory", "pids"} <= set(directories):
    return Parents(1, directories), ""
  for root, mount_point, _ in _mounts("cgroup2"):
    directory = _own_directory(root, mount_point, own.get("", "/"))
    for candidate in (directory, *directory.parents):
      if not candidate.is_relative_to(mount_point):
        break
      if _delegates(candidate):
        return Parents(2, dict.fromkeys(CONTROLLERS, candidate)), ""
  return None, "no control group with memory and pids is writable here"


def _delegates(directory: Path) -> bool:
  """True if a new child of this version 2 group would have limits, and we may make and fill it."""
  try:
    enabled = (directory / "cgroup.subtree_control").read_text().split()
  except OSError:
    return False
  writable = all(os.access(p, os.W_OK) for p in (directory, directory / "cgroup.procs"))
  return writable and {"memory", "pids"} <= set(enabled)


class Counters:
  """What the kernel counts for one group, read through descriptors that are kept open."""

  def __init__(self, version: int, directories: dict[str, Path]):
    self.version, self.directories = version, directories
    self._files: dict[str, int] = {}
    self._oom_events, self._oom_seen = -1, 0

  def watch_oom(self) -> None:
    """For a group that others remove: has the kernel tell us of a kill even as the group goes.

    Only version 1 has such events, and only root may ask for them.
    """
    if self.version == 1 and os.geteuid() == 0:
      self._oom_events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
      self.oom_kills()  # opens the file that the events are about
      order = f"{self._oom_events} {self._files['memory.oom_control']}"
      (self.directories["memory"] / "cgroup.event_control").write_text(order)

  def forget_oom(self) -> None:
    self._count_oom()
    self._oom_seen = 0

  def saw_oom(self) -> bool:
    """True if memory ran out since `forget_oom`. The group's removal is an event as well."""
    self._count_oom()
    if self.directories["memory"].exists():
      return self._oom_seen >= 1
    self._count_oom()
    return self._oom_seen >= 2

  def _count_oom(self) -> None:
    if self._oom_events >= 0:
      with contextlib.suppress(BlockingIOError):
        self._oom_seen += os.eventfd_read(self._oom_events)

  def _read(self, controller: str, name: str) -> bytes:
    if name not in self._files:
      self._files[name] = os.open(self.directories[controller] / name, os.O_RDONLY)
    return os.pread(self._files[name], 8192, 0)

  def oom_kills(self) -> int:
    """Processes of the group that the kernel killed for memory, since the group was made."""
    name = "memory.oom_control" if self.version == 1 else "memory.events"
    return _counter(self._read("memory", name), b"oom_kill")

  def refused_forks(self) -> int:
    """Forks that the pids limit refused, since the group was made."""
    return _counter(self._read("pids", "pids.events"), b"max")

  def cpu_s(self) -> float | None:
    """Processor seconds of all processes of the group, since it was made."""
    if self.version == 2:
      return _counter(self._read("cpuacct", "cpu.stat"), b"usage_usec") / 1e6
    if "cpuacct" not in self.directories:
      return None
    return int(self._read("cpuacct", "cpuacct.usage")) / 1e9

  def memory_limit(self) -> int:
    """Bytes; a huge number for no limit."""
    name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
    text = self._read("memory", name).strip()
    return 1 << 62 if text == b"max" else int(text)

  def reset_peak(self) -> None:
    if self.version == 1:
      name = "memory.max_usage_in_bytes"
      if name not in self._files:
        self._files[name] = os.open(self.directories["memory"] / name, os.O_RDWR)
      os.pwrite(self._files[name], b"0", 0)

  def peak_bytes(self) -> int:
    """Highest memory use since `reset_peak`; 0 where the kernel does not count it for a run."""
    return int(self._read("memory", "memory.max_usage_in_bytes")) if self.version == 1 else 0

  def processes(self) -> list[int]:
    return [int(p) for p in (self.directories["pids"] / "cgroup.procs").read_text().split()]

  def close(self) -> None:
    for fd in (*self._files.values(), *([self._oom_events] if self._oom_events >= 0 else [])):
      os.close(fd)
    self._files, self._oom_events = {}, -1


class ControlGroup(Counters):
  """The group of one sandbox, made by us. Limits are written only when they change."""

  def __init__(self, parents: Parents, name: str):
    super().__init__(
      parents.version, {c: d / (PREFIX + name) for c, d in parents.directories.items()}
    )
    for directory in set(self.directories.values()):
      directory.mkdir(exist_ok=True)
    self._limits: tuple[int, int] | None = None
    # A process with one thread enters by `tasks` as well, and there the kernel of version 1 does
    # not wait until it has seen every processor (5 to 20 ms). Version 2 has no such file.
    entrance = "tasks" if self.version == 1 else "cgroup.procs"
    self.enter_fds = tuple(
      os.open(d / entrance, os.O_WRONLY) for d in set(self.directories.values())
    )

  def set_limits(self, memory_bytes: int, pids: int) -> None:
    if (memory_bytes, pids) == self._limits:
      return
    memory = self.directories["memory"]
    if self.version == 1:
      swap = memory / "memory.memsw.limit_in_bytes"  # absent where swap is not accounted
      if swap.exists():
        swap.write_text("-1")
      (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
      if swap.exists():
        swap.write_text(str(memory_bytes))
    else:
      (memory / "memory.max").write_text(str(memory_bytes))
      if (memory / "memory.swap.max").exists():
        (memory / "memory.swap.max").write_text("0")
    (self.directories["pids"] / "pids.max").write_text(str(pids))
    self._limits = (memory_bytes, pids)

  def remove(self) -> None:
    """Kills what is left in the group and removes it."""
    for fd in self.enter_fds:
      os.close(fd)
    self.enter_fds = ()
    self.close()
    remove_groups([str(d) for d in set(self.directories.values())])


def counters_of(pid: int) -> Counters | None:
  """Counters of the groups that a process of this host is in; None if we cannot see them."""
  own = _paths(pid)
  directories = {}
  for root, mount_point, options in _mounts("cgroup"):
    for controller in options & set(CONTROLLERS):
      directories[controller] = _own_directory(root, mount_point, own.get(controller, "/"))
  if {"memory", "pids"} <= set(directories):
    version = 1
  else:
    version = 2
    for root, mount_point, _ in _mounts("cgroup2"):
      directory = _own_directory(root, mount_point, own.get("", "/"))
      directories = dict.fromkeys(CONTROLLERS, directory)
  readable = directories and all(
    os.access(d / "cgroup.procs", os.R_OK) for d in directories.values()
  )
  return Counters(version, directories) if readable else None


def _counter(text: bytes, name: bytes) -> int:
  for line in text.splitlines():
    key, _, value = line.partition(b" ")
    if key == name:
      return int(value)
  return 0


def remove_groups(directories: list[str], patience_s: float = 2.0) -> list[str]:
  """Kills the processes of groups of ours and removes them. Returns those that would not go."""
  left = []
  for directory in directories:
    path = Path(directory)
    if not path.name.startswith(PREFIX):
      raise ValueError(f"{directory} is not a control group of this package")
    deadline = time.monotonic() + patience_s
    while path.exists():
      try:
        path.rmdir()
      except OSError:
        if time.monotonic() > deadline:
          left.append(directory)
          break
        with contextlib.suppress(OSError):
          for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.005)
  return left
