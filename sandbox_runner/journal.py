"""What a runner has on this host, written down before it is made; and the reaper for what is left.

Each runner has one file, locked for as long as it lives. A file that can be locked belongs to a
runner that is gone: what it lists is removed. Supervisors end with their runner by themselves,
twice over (bwrap's die-with-parent, and the end of their input); only a bwrap whose runner died
while it made its namespaces has to be looked for.
"""

import contextlib
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
    path = state_directory() / f"{secrets.token_hex(6)}.jsonl"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return cls(path, fd)

  def add(self, kind: str, names: list[str]) -> None:
    """Called before the things of these names are made."""
    os.write(self._fd, json.dumps({kind: names}).encode() + b"\n")

  def close(self) -> None:
    """Called when the runner has removed all that it had."""
    self.path.unlink(missing_ok=True)
    os.close(self._fd)


def reap() -> list[str]:
  """Removes what runners that are gone have left. Returns the names of what was removed."""
  removed = []
  for path in state_directory().glob("*.jsonl"):
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
      try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        continue  # its runner lives
      removed += _reap_one(path.stem, f.read())
      path.unlink(missing_ok=True)
  return removed


def _reap_one(runner: str, text: bytes) -> list[str]:
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
  return groups + killed + (remove_containers(runner) if containers else [])


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


def remove_containers(runner: str) -> list[str]:
  """Removes the containers with this runner's label. None if no daemon answers."""
  docker = shutil.which("docker")
  if docker is None:
    return []
  label = f"label={LABEL}={runner}"
  try:
    listed = subprocess.run(
      [docker, "ps", "-aq", "--filter", label],
      capture_output=True,
      text=True,
      timeout=20,
      check=False,
    )
    names = listed.stdout.split()
    if names:
      subprocess.run([docker, "rm", "-f", *names], capture_output=True, timeout=60, check=False)
  except subprocess.TimeoutExpired:
    return []
  return names
