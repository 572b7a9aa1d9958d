"""The bubblewrap backend: no daemon, no image; works as root and as an ordinary user.

The sandbox is a user namespace that knows nobody of the host. Started by root, bwrap itself runs
as an unused user, and root maps a range of unused users into the namespace: the supervisor is the
first of them, tasks are another. Started by an ordinary user, only that user can be mapped, and
each task gets a further user namespace, in which it has neither the supervisor's user nor rights.

Memory, processes and processor time are limited by a control group where one can be made, else by
rlimits, which hold for each process alone. `limits_enforced` of a result says which.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from sandbox_runner import seccomp
from sandbox_runner.backends.base import (
  BOOTSTRAP,
  BOOTSTRAP_LIMIT_S,
  GUEST,
  Backend,
  BackendStatus,
  Usage,
  Vessel,
  kill_child,
)
from sandbox_runner.cgroups import PREFIX, ControlGroup, Parents, find_parents
from sandbox_runner.journal import kill_launchers
from sandbox_runner.types import Limits, SandboxLost

INSTALL = "apt-get install -y bubblewrap"
SEEN_PIDS = 32  # over the limit, without a control group: for the supervisor to see
FIRST_ID, ID_COUNT = 2_000_000_000, 65536
SUPERVISOR_CAPABILITIES = (
  "SYS_ADMIN",  # namespaces and mounts of its own
  "SYS_CHROOT",  # setns to a mount namespace
  "SETPCAP",  # to drop the bounding set
  "SETUID",  # to become the task's user
  "SETGID",
  "KILL",  # to end the task's processes
  "SETFCAP",  # to map the first user into the further namespace of a task
  "DAC_OVERRIDE",  # to read back and to remove what a task has made, whatever its modes
  "FOWNER",
)
PASSWD = b"root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/tmp:/bin/sh\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"
NEEDED_MODULES = "import ctypes, mmap, unittest, sys; print(sys.base_prefix)"


def covers_range(id_map: str) -> bool:
  """True if a user map of this process's namespace holds all of our range."""
  rows = [tuple(map(int, line.split())) for line in id_map.splitlines()]
  return any(r[0] <= FIRST_ID and r[0] + r[2] >= FIRST_ID + ID_COUNT for r in rows)


def can_map_range() -> bool:
  """True if this process is root and may give users of its own choice to a sandbox."""
  maps = (Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map"))
  return os.geteuid() == 0 and all(covers_range(m) for m in maps)


def find_python() -> tuple[str, str]:
  """(interpreter, its prefix) of the host for use in sandboxes; one in /usr if there is one.

  Raises ValueError if there is none with the whole standard library.
  """
  for candidate in ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable)):
    if not os.access(candidate, os.X_OK):
      continue
    done = subprocess.run(
      [candidate, "-I", "-c", NEEDED_MODULES],
      capture_output=True,
      text=True,
      timeout=30,
      check=False,
    )
    if done.returncode == 0:
      return candidate, done.stdout.strip()
  raise ValueError("no python3 with the whole standard library; apt-get install -y python3")


def system_mounts(root: str, prefix: str) -> list[str]:
  """bwrap options for the read-only system: `root` is "" (the host's /usr) or an unpacked image."""
  if root:
    return ["--ro-bind", root, "/"]
  options = ["--ro-bind", "/usr", "/usr"]
  for name in ("box", "work", "tmp", "run", "var", "etc"):
    options += ["--dir", f"/{name}"]
  for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
    path = f"/{name}"
    if os.path.islink(path):
      options += ["--symlink", os.readlink(path).lstrip("/"), f"/{name}"]
    elif os.path.isdir(path):
      options += ["--ro-bind", path, f"/{name}"]
  for name in ("ld.so.cache", "alternatives"):
    options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
  if not prefix.startswith("/usr"):
    options += ["--ro-bind", prefix, prefix]
  return [*options, "--symlink", "/tmp", "/var/tmp"]


class BwrapBackend(Backend):
  """Sandboxes by bubblewrap. `image` is "" for the host's own /usr, or an unpacked root tree."""

  name = "bwrap"

  def __init__(
    self, image: str = "", preload: tuple[str, ...] = (), journal: Callable[..., None] | None = None
  ):
    super().__init__()
    self.preload, self.journal = preload, journal
    program = shutil.which("bwrap")
    if program is None:
      raise SandboxLost(f"bwrap is not installed; {INSTALL}")
    self.program = program
    self.maps_range = can_map_range()
    if image:
      self.python, prefix = "/usr/bin/python3", "/usr"
    else:
      self.python, prefix = find_python()
    self.system = system_mounts(image.rstrip("/"), prefix)
    self.parents, self.no_group_because = find_parents()

  async def open(self, sandbox: str, limits: Limits) -> "BwrapVessel":
    if self.journal:
      self.journal("launchers", [sandbox])
    if self.parents and self.journal:
      paths = {str(d / (PREFIX + sandbox)) for d in self.parents.directories.values()}
      self.journal("cgroups", sorted(paths))
    vessel = BwrapVessel(self, sandbox)
    try:
      await vessel.start()
    except BaseException:
      await vessel.close()
      raise
    return vessel


class BwrapVessel(Vessel):
  """One bwrap process, its control group, and the descriptors that it was given."""

  keeps_nothing = True

  def __init__(self, backend: BwrapBackend, sandbox: str):
    super().__init__(sandbox)
    self.backend = backend
    self.process = None
    parents: Parents | None = backend.parents
    self.group = ControlGroup(parents, sandbox) if parents else None
    self.supervisor = -1  # a descriptor of its process
    self._start: tuple[int, float, int] = (0, 0.0, 0)
    filter_code = seccomp.task_filter()
    self.setup = {
      "box": "namespaces",
      "guest_kernel": False,
      "own_users": not backend.maps_range,
      "disk_mb": Limits().disk_mb,
      "cgroup_fds": list(self.group.enter_fds) if self.group else [],
      "seccomp": base64.b64encode(filter_code).decode(),
      "preload": backend.preload,
    }
    if self.group:
      tree = f"control group v{self.group.version}"
      grouped = {"memory": tree, "pids": tree, "cpu": f"{tree}; rlimit for each process"}
    else:
      grouped = dict.fromkeys(("memory", "pids", "cpu"), "rlimit for each process")
      grouped["pids"] = f"supervisor; rlimit for the task's user, {SEEN_PIDS} above"
    self.enforced = {
      **grouped,
      "wall": "supervisor and host",
      "disk": "size of one tmpfs behind every writable directory",
      "output": "supervisor",
      "network": "own network namespace without interfaces",
      "calls": "seccomp" if filter_code else "no",
    }

  def command(self, passwd: int, group: int, calls: int, info: int, blocked: int) -> list[str]:
    options = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"]
    options += ["--hostname", "sandbox", "--clearenv", "--setenv", "LANG", "C.UTF-8"]
    options += ["--setenv", "SANDBOX", self.sandbox]  # by which `kill_launchers` finds it
    options += ["--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    for capability in SUPERVISOR_CAPABILITIES:
      options += ["--cap-add", f"CAP_{capability}"]
    options += ["--info-fd", str(info)]
    if calls >= 0:
      options += ["--seccomp", str(calls)]
    if self.backend.maps_range:
      options += ["--userns-block-fd", str(blocked)]
    options += [*self.backend.system, "--proc", "/proc", "--dev", "/dev"]
    options += ["--ro-bind-data", str(passwd), "/etc/passwd"]
    options += ["--ro-bind-data", str(group), "/etc/group"]
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    python = [self.backend.python, "-B", "-c", BOOTSTRAP.format(size=len(GUEST))]
    return [self.backend.program, *options, "--", *python]

  async def start(self) -> None:
    info_r, info_w = os.pipe()
    blocked_r, blocked_w = os.pipe()
    ours, theirs = [info_r, blocked_w], [info_w, blocked_r]
    try:
      passwd, group = _data_fd("passwd", PASSWD), _data_fd("group", GROUP)
      theirs += [passwd, group]
      calls = -1
      if code := seccomp.supervisor_filter():  # else the posture check finds it, or is waived
        theirs.append(calls := _data_fd("calls", code))
      self.process = await asyncio.create_subprocess_exec(
        *self.command(passwd, group, calls, info_w, blocked_r),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self.log,
        cwd="/",
        env={},
        pass_fds=(*theirs, *(self.group.enter_fds if self.group else ())),
        **_as_user(self.backend.maps_range),
      )
      while theirs:
        os.close(theirs.pop())
      child = await _child_pid(info_r, self.process)
      self.supervisor = os.pidfd_open(child)
      if self.backend.maps_range:
        for name in ("uid_map", "gid_map"):
          Path(f"/proc/{child}/{name}").write_text(f"0 {FIRST_ID} {ID_COUNT}")
        os.write(blocked_w, b"1")
    finally:
      for fd in (*ours, *theirs):
        os.close(fd)

  async def started(self) -> None:
    """The limits are laid on for each task, by calls that fail if they cannot."""

  def fits(self, limits: Limits) -> bool:
    return True

  def prepare(self, limits: Limits) -> None:
    if self.group:
      self.group.set_limits(limits.memory_mb << 20, limits.pids)
      self.group.reset_peak()
      group = self.group
      self._start = (group.oom_kills(), group.cpu_s() or 0.0, group.refused_forks())

  def rlimits(self, limits: Limits) -> tuple[int, int]:
    return (0, 0) if self.group else (limits.memory_mb << 20, limits.pids + SEEN_PIDS)

  def usage(self) -> Usage:
    if not self.group:
      return Usage(0, None, 0)
    kills, cpu_s = self.group.oom_kills() - self._start[0], self.group.cpu_s()
    spent = None if cpu_s is None else cpu_s - self._start[1]
    refused = self.group.refused_forks() - self._start[2]
    return Usage(kills, spent, self.group.peak_bytes(), refused)

  async def end(self) -> None:
    if self.process:
      self.stdin.close()
      await self._end_processes(self.process)
    if self.group:
      self.group.remove()

  async def _end_processes(self, launcher: asyncio.subprocess.Process) -> None:
    """Ends the launcher and the supervisor, upon which the kernel ends all else.

    That bwrap's child dies with bwrap holds only after its setup: a bwrap that is killed before
    leaves a child that waits for ever. So the supervisor is killed by itself, and if it is not yet
    known, whatever was started under this sandbox's name.
    """
    if self.supervisor >= 0:
      with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(self.supervisor, signal.SIGKILL)
    kill_child(launcher)
    while self.supervisor < 0 and launcher.returncode is None:
      kill_launchers([self.sandbox])
      await asyncio.sleep(0.005)
    if self.supervisor < 0:
      kill_launchers([self.sandbox])
    else:
      os.close(self.supervisor)
    await launcher.wait()


class _User(TypedDict, total=False):
  """Arguments of a subprocess that starts as another user."""

  user: int
  group: int
  extra_groups: list[int]


def _as_user(maps_range: bool) -> _User:
  """bwrap itself runs as the first user of the range, if there is one."""
  return {"user": FIRST_ID, "group": FIRST_ID, "extra_groups": []} if maps_range else {}


def _data_fd(name: str, data: bytes) -> int:
  fd = os.memfd_create(name)
  os.write(fd, data)
  os.lseek(fd, 0, os.SEEK_SET)
  return fd


async def _child_pid(fd: int, bwrap: asyncio.subprocess.Process) -> int:
  """The pid that bwrap reports. Raises SandboxLost if it ends before, or takes too long."""
  os.set_blocking(fd, False)
  text = b""
  deadline = time.monotonic() + BOOTSTRAP_LIMIT_S
  while not text.rstrip().endswith(b"}"):
    with contextlib.suppress(BlockingIOError):
      text += os.read(fd, 4096)
    if bwrap.returncode is not None or time.monotonic() > deadline:
      raise SandboxLost("bwrap did not make its namespaces")
    await asyncio.sleep(0.002)
  return json.loads(text)["child-pid"]


def bwrap_status() -> BackendStatus:
  """Tries a sandbox by the bwrap command alone: are user namespaces allowed here?"""
  program = shutil.which("bwrap")
  if program is None:
    return BackendStatus("bwrap", False, "bwrap is not installed", INSTALL)
  try:
    find_python()
  except ValueError as e:
    return BackendStatus("bwrap", False, str(e), "apt-get install -y python3")
  options = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--uid",
    "0",
    "--ro-bind",
    "/",
    "/",
  ]
  done = subprocess.run(
    [program, *options, "--proc", "/proc", "--", "/bin/true"],
    capture_output=True,
    text=True,
    timeout=30,
    check=False,
    **_as_user(can_map_range()),
  )
  if done.returncode:
    detail = " ".join(done.stderr.split())[:200]
    fix = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
    return BackendStatus("bwrap", False, f"bwrap cannot make namespaces here: {detail}", fix)
  parents, why_not = find_parents()
  grouped = f"control groups v{parents.version}" if parents else f"rlimits only ({why_not})"
  users_text = "own user range" if can_map_range() else "one user mapped"
  version = subprocess.run(
    [program, "--version"], capture_output=True, text=True, timeout=30, check=False
  )
  return BackendStatus("bwrap", True, f"{version.stdout.strip()}, {grouped}, {users_text}")
