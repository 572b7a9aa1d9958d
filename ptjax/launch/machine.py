"""Probes of this machine, one function each; every one ends within seconds and never hangs."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox_runner import detect_backends

GIB = 2**30

SANDBOX = "sandbox: "
"""Prefix of the checks of sandbox backends."""


@dataclasses.dataclass(frozen=True)
class Check:
  """One row of the doctor.

  Attributes:
    name: what was looked for.
    ok: whether it is there and works.
    found: version, size, or the reason why it does not work.
    fix: one command or step that would bring it; empty where nothing is needed.
  """

  name: str
  ok: bool
  found: str
  fix: str = ""


def probe(command: Sequence[str], timeout_s: float = 20) -> tuple[bool, str]:
  """(true, its output), or (false, the last line of its errors) where it lacks or fails."""
  try:
    result = subprocess.run(
      command, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
    )
  except FileNotFoundError:
    return False, f"{command[0]} is not installed"
  except subprocess.TimeoutExpired:
    return False, f"{command[0]} did not answer within {timeout_s:g} s"
  if result.returncode == 0:
    return True, result.stdout.strip()
  errors = result.stderr.strip().splitlines()
  return False, errors[-1] if errors else f"{command[0]} ended with status {result.returncode}"


def python() -> Check:
  version = platform.python_version()
  ok = sys.version_info >= (3, 11)
  return Check("Python", ok, version, "" if ok else "install Python 3.11 or newer")


def jax() -> Check:
  """Imported in a process of its own: a TPU held by another run would block this one."""
  code = (
    "import jax, json; d = jax.devices();"
    "print(json.dumps([jax.__version__, len(d), d[0].device_kind, d[0].platform]))"
  )
  ok, text = probe([sys.executable, "-c", code], timeout_s=90)
  if not ok:
    return Check("JAX", False, text, "pip install jax, and see that no other run holds the device")
  version, count, kind, name = json.loads(text.splitlines()[-1])
  kind = name if kind == name else f"{name} {kind}"
  return Check("JAX", True, f"{version}, {count} device(s): {kind}")


def docker() -> Check:
  ok, text = probe(["docker", "version", "--format", "{{.Server.Version}}"])
  if ok:
    return Check("docker daemon", True, text)
  installed = shutil.which("docker") is not None
  fix = as_root("systemctl start docker") if installed else install_command("docker.io", "docker")
  return Check("docker daemon", False, text, fix)


def gvisor(docker_answers: bool) -> Check:
  """gVisor serves the docker backend: the runtime must be registered with the daemon."""
  registered, text = (
    probe(["docker", "info", "--format", "{{json .Runtimes}}"]) if docker_answers else (False, "{}")
  )
  if registered and "runsc" in json.loads(text):
    return Check("gVisor (runsc)", True, "registered with docker")
  installed, version = probe(["runsc", "--version"])
  if not installed:
    return Check("gVisor (runsc)", False, "not installed", install_command("runsc", "runsc"))
  found = f"{version.splitlines()[0]}, but docker has no such runtime"
  if not docker_answers:
    return Check("gVisor (runsc)", False, found, "start the docker daemon first")
  fix = f"{as_root('runsc install')} && {as_root('systemctl restart docker')}"
  return Check("gVisor (runsc)", False, found, fix)


def sandboxes() -> list[Check]:
  """The backends as a pool would find them: each one has really started a sandbox."""
  return [
    Check(SANDBOX + status.name, status.available, status.detail, status.fix)
    for status in detect_backends()
  ]


def memory() -> Check:
  """Physical memory, or the limit of this cgroup where that is smaller."""
  page = os.sysconf("SC_PAGE_SIZE")
  total = available = os.sysconf("SC_PHYS_PAGES") * page
  meminfo = Path("/proc/meminfo")
  if meminfo.exists():  # Linux also knows what caches would give back
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
  limit = Path("/sys/fs/cgroup/memory.max")
  if limit.exists() and (text := limit.read_text().strip()) != "max":
    total = min(total, int(text))
    available = min(available, total)
  found = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
  ok = available >= 4 * GIB
  return Check("memory", ok, found, "" if ok else "the 135M demo needs 4 GiB: stop other programs")


def cores() -> Check:
  total = os.cpu_count()
  usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else total
  return Check("cores", True, f"{usable} of {total} usable")


def disk(directory: str = ".") -> Check:
  usage = shutil.disk_usage(directory)
  ok = usage.free >= 5 * GIB
  found = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free here"
  return Check("disk", ok, found, "" if ok else "the demo's checkpoints need 5 GiB: free some")


def package(name: str, purpose: str, install: str) -> Check:
  """An optional distribution: what it is for, and the command that installs it."""
  try:
    version = importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return Check(name, False, f"not installed ({purpose})", install)
  return Check(name, True, f"{version} ({purpose})")


def install_command(debian: str, other: str) -> str:
  """The command that installs a system package with the manager that this machine has."""
  managers = {
    "apt-get": f"apt-get install -y {debian}",
    "dnf": f"dnf install -y {other}",
    "pacman": f"pacman -S {other}",
    "apk": f"apk add {other}",
  }
  for manager, command in managers.items():
    if shutil.which(manager):
      return as_root(command)
  return f"install {other} with the package manager of this system"


def as_root(command: str) -> str:
  return command if os.geteuid() == 0 else f"sudo {command}"
