"""What a runner has on this host, written down before it is made; and the reaper for what is left.

Each runner has one file, locked for as long as it lives. A file that can be locked belongs to a
runner that is gone: what it lists is removed. Supervisors end with their runner by themselves,
twice over (bwrap's die-with-parent, and the end of their input); only a bwrap whose runner died
while it made its namespaces has to be looked for.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from sandbox_runner.cgroups import remove_groups

LABEL = "sandbox_runner.runner"
CLI_S = 20.0  # for any one call of the docker command


def state_directory() -> Path:
  """Private to the user. Raises ValueError if someone else made it."""
  base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
  path = Path(base) / f"sandbox_runner-{os.geteuid()}"
  path.mkdir(mode=0o700, exist_ok=True)
  status = path.lstat()
  if status.st_uid != os.geteuid() or status.st_mode & 0o022 or path.is_symlink():
    raise ValueError(f"{path} belongs to someone else or is open to others; remove it")
  return path


class Journal:
  """The journal of this runner."""

  def __init__(self, path: Path, fd: int):
    self.path, self._fd = path, fd
    self.runner = path.stem

  @classmethod
  def create(cls) -> "Journal":
    """A reaper may find the file before it is locked, and remove it: then there is another one."""
    while True:
      path = state_directory() / f"{secrets.token_hex(6)}.jsonl"
      fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
      fcntl.flock(fd, fcntl.LOCK_EX)
      if os.fstat(fd).st_nlink:
        return cls(path, fd)
      os.close(fd)

  def add(self, kind: str, names: list[str]) -> None:
    """Called before the things of these names are made. Raises OSError if it cannot be written."""
    line = json.dumps({kind: names}).encode() + b"\n"
    size = os.fstat(self._fd).st_size
    if os.write(self._fd, line) < len(line):
      os.ftruncate(self._fd, size)  # half a line would swallow the next one
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

  def close(self, all_removed: bool) -> None:
    """What a runner could not remove is left to the next one that starts, or to `reap`."""
    if all_removed:
      self.path.unlink(missing_ok=True)
    os.close(self._fd)


def reap() -> list[str]:
  """Removes what runners that are gone have left. Returns the names of what was removed."""
  removed, daemon_answers = [], True
  for path in state_directory().glob("*.jsonl"):
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
      try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        continue  # its runner lives
      names, has_containers = _reap_one(f.read())
      if has_containers and daemon_answers:  # else each journal would wait for it anew
        containers = remove_containers(path.stem)
        daemon_answers = containers is not None
        names += containers or []
      removed += names
      if daemon_answers or not has_containers:
        path.unlink(missing_ok=True)
  return removed


def _reap_one(text: bytes) -> tuple[list[str], bool]:
  """(names of what was removed, whether there may be containers as well)."""
  groups, launchers, containers = [], [], False
  for line in text.splitlines():
    try:
      entry = json.loads(line)
    except ValueError:
      continue  # the runner was killed while it wrote this line, so before it made the thing
    groups += [d for d in entry.get("cgroups", []) if os.path.isdir(d)]
    launchers += entry.get("launchers", [])
    containers = containers or "containers" in entry
  killed = kill_launchers(launchers)
  remove_groups(groups)
  return groups + killed, containers


def kill_launchers(sandboxes: list[str]) -> list[str]:
  """Kills each bwrap that was started for one of these sandboxes. Returns their names."""
  wanted = {name.encode() for name in sandboxes}
  killed = []
  for entry in os.listdir("/proc") if wanted else ():
    if not entry.isdigit():
      continue
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
      arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
      if os.path.basename(arguments[0]) == b"bwrap" and (found := wanted & set(arguments)):
        os.kill(int(entry), signal.SIGKILL)
        killed += [name.decode() for name in found]
  return killed


def remove_containers(runner: str) -> list[str] | None:
  """Removes the containers with this runner's label. None if the daemon does not do it in time."""
  docker = shutil.which("docker")
  if docker is None:
    return []
  listed = _docker(docker, "ps", "-aq", "--filter", f"label={LABEL}={runner}")
  if listed is None or not listed:
    return listed
  return listed if _docker(docker, "rm", "-f", *listed) is not None else None


def _docker(*command: str) -> list[str] | None:
  """The words that the command prints; None if it fails or takes too long."""
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLI_S, check=False)
  except subprocess.TimeoutExpired:
    return None
  return None if done.returncode else done.stdout.split()
