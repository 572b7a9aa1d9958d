"""Faults for the tests to cause: a docker command that hangs, a daemon of the test's own."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from sandbox_host import arguments_of_all, processes

HANGING_DOCKER = """#!/bin/sh
if [ -e "{directory}/hang" ]; then exec sleep 4326; fi
exec {docker} "$@"
"""


async def until(condition, seconds: float = 60) -> None:
  async with asyncio.timeout(seconds):
    while not condition():
      await asyncio.sleep(0.02)


def runs(*argv: str) -> list[int]:
  """The processes of this machine with these arguments."""
  wanted = [a.encode() for a in argv]
  return [pid for pid, a in arguments_of_all().items() if a[: len(wanted)] == wanted]


def named(text: str) -> dict[int, list[bytes]]:
  """The processes of this machine with this text in an argument."""
  return {p: a for p, a in arguments_of_all().items() if any(text.encode() in part for part in a)}


def docker(*arguments: str) -> str:
  command = ["docker", *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def containers(runner: str) -> list[str]:
  """Those of a pool, running or not."""
  return docker("ps", "-a", "--filter", f"name={runner}", "--format", "{{.Names}}").split()


def first_process(container: str) -> int:
  return int(docker("inspect", "--format", "{{.State.Pid}}", container))


def parent(pid: int) -> int:
  return processes()[pid][0]


class HangingDocker:
  """A docker command, first on the path, that hangs for as long as it is told to."""

  def __init__(self, directory: Path, monkeypatch):
    self._hang = directory / "hang"
    (directory / "docker").write_text(
      HANGING_DOCKER.format(directory=directory, docker=shutil.which("docker"))
    )
    (directory / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")

  def hang(self) -> None:
    self._hang.touch()

  def answer(self) -> None:
    self._hang.unlink()

  def vanish(self) -> None:
    """The command is gone, for who has remembered its path."""
    (self._hang.parent / "docker").unlink()


class Daemon:
  """A docker daemon beside that of the machine, with all that it has in one directory."""

  def __init__(self):
    self.directory = Path(tempfile.mkdtemp(prefix="sandbox_runner-test-"))
    self.host = f"unix://{self.directory}/socket"
    self._process: subprocess.Popen | None = None

  def start(self) -> None:
    """Raises RuntimeError with the end of its log if it does not answer."""
    for stale in (
      "pid",
      "exec/containerd/containerd.pid",
    ):  # believed if the number is in use again
      (self.directory / stale).unlink(missing_ok=True)
    options = ["--data-root", self.directory / "data", "--exec-root", self.directory / "exec"]
    options += ["--pidfile", self.directory / "pid", "--host", self.host, "--bridge", "none"]
    options += ["--iptables=false", "--ip-forward=false", "--ip-masq=false"]
    with open(self.directory / "log", "ab") as log:
      self._process = subprocess.Popen(
        ["dockerd", *map(str, options)], stdout=log, stderr=log, start_new_session=True
      )
    deadline = time.monotonic() + 90
    command = ["docker", "--host", self.host, "version"]
    while subprocess.run(command, capture_output=True, check=False, timeout=60).returncode:
      if time.monotonic() > deadline or self._process.poll() is not None:
        raise RuntimeError((self.directory / "log").read_text()[-2000:])
      time.sleep(0.2)

  def kill(self) -> None:
    """By SIGKILL, and its containerd with it, as by an init system: neither says goodbye."""
    self._process.kill()
    for pid, arguments in named(f"{self.directory}/exec/containerd").items():
      if arguments[0].endswith(b"containerd"):
        os.kill(pid, signal.SIGKILL)
    self._process.wait()

  def remove(self) -> None:
    """Ends it well, then whatever is left of it."""
    self._process.terminate()
    self._process.wait(timeout=60)
    for pid in named(str(self.directory)):
      os.kill(pid, signal.SIGKILL)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
      point = line.split()[4]
      if point.startswith(str(self.directory)):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    shutil.rmtree(self.directory, ignore_errors=True)
