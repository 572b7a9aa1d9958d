"""The docker backend: containers by runc or by runsc (gVisor), driven by the docker command.

The command is never on the way of a task: a container is started once, its supervisor is spoken to
over the pipe of `docker run -i`, and only start and end cost a call. The supervisor is root in its
container with six capabilities; tasks have another user and none. A container's memory, processes
and disk are fixed when it is made, so a request with other limits gets another container.
"""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable

from sandbox_runner import seccomp
from sandbox_runner.backends.base import (
  BOOTSTRAP,
  GUEST,
  Backend,
  BackendStatus,
  Usage,
  Vessel,
  kill_child,
)
from sandbox_runner.cgroups import Counters, counters_of
from sandbox_runner.journal import LABEL
from sandbox_runner.types import Limits, SandboxLost

CLI_S = 30.0  # for any one call of the docker command
SUPERVISOR_MB = 32  # on top of a task's memory
CAPABILITIES = (  # of the supervisor: to become the task's user, to kill, to wipe
  *("SETUID", "SETGID", "SETPCAP"),
  *("KILL", "DAC_OVERRIDE", "FOWNER"),
)
DAEMON_FIX = "apt-get install -y docker.io && systemctl start docker"


def docker_status(image: str = "", get_it: str = "") -> BackendStatus:
  """Does a daemon answer? Which runtimes has it, and has it `image`, which `get_it` would get?"""
  program = shutil.which("docker")
  if program is None:
    return BackendStatus("docker", False, "the docker command is not installed", DAEMON_FIX)
  answer = _query(program, "info", "--format", "{{.ServerVersion}} {{json .Runtimes}}")
  version, _, runtimes = answer.stdout.strip().partition(" ")
  if answer.returncode or not version:
    detail = (answer.stderr.strip().splitlines() or ["no daemon answers"])[-1][:200]
    return BackendStatus("docker", False, detail, DAEMON_FIX)
  names = ", ".join(sorted(set(json.loads(runtimes)) & {"runc", "runsc"}))
  if image and _query(program, "image", "inspect", image).returncode:
    return BackendStatus("docker", False, f"it has no image {image}", get_it)
  return BackendStatus("docker", True, f"docker {version} with {names}")


def _query(*command: str) -> subprocess.CompletedProcess:
  try:
    return subprocess.run(command, capture_output=True, text=True, timeout=CLI_S, check=False)
  except subprocess.TimeoutExpired:
    return subprocess.CompletedProcess(command, 1, "", f"no answer within {CLI_S:.0f} s")


class DockerBackend(Backend):
  """Containers of one image under one runtime."""

  def __init__(
    self,
    image: str,
    runtime: str = "auto",
    preload: tuple[str, ...] = (),
    journal: Callable[..., None] | None = None,
  ):
    super().__init__()
    self.image, self.preload, self.journal = image, preload, journal
    self.program = shutil.which("docker") or "docker"
    known = json.loads(_query(self.program, "info", "--format", "{{json .Runtimes}}").stdout)
    self.runtime = ("runsc" if "runsc" in known else "runc") if runtime == "auto" else runtime
    if self.runtime not in known:
      raise ValueError(f"docker has no runtime {self.runtime}, only {', '.join(sorted(known))}")
    self.name = f"docker+{self.runtime}"
    # The daemon gains nothing from more at a time than there are processors for.
    at_a_time = max(2, os.cpu_count() or 2)
    self.calls, self.starts = asyncio.Semaphore(at_a_time), asyncio.Semaphore(at_a_time)

  async def open(self, sandbox: str, limits: Limits) -> "DockerVessel":
    if self.journal:
      self.journal("containers", [sandbox])
    vessel = DockerVessel(self, sandbox, limits)
    try:
      await vessel.start()
    except BaseException:
      await vessel.close()
      raise
    return vessel

  async def call(self, *arguments: str) -> str:
    """One docker command. Raises SandboxLost if it fails or does not end in time."""
    try:
      async with asyncio.timeout(CLI_S), self.calls:
        process = await asyncio.create_subprocess_exec(
          self.program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
          said, _ = await process.communicate()
        finally:
          kill_child(process)
          await process.wait()
    except TimeoutError as e:
      raise SandboxLost(f"docker {arguments[0]} did not answer within {CLI_S:.0f} s") from e
    except OSError as e:  # no such command any more, or no process or descriptor left for it
      raise SandboxLost(f"docker {arguments[0]} could not be started: {e}") from e
    if process.returncode:
      raise SandboxLost(f"docker {arguments[0]}: {said.decode('utf-8', 'replace').strip()[-200:]}")
    return said.decode("utf-8", "replace").strip()


class DockerVessel(Vessel):
  """One container."""

  keeps_nothing = False

  def __init__(self, backend: DockerBackend, sandbox: str, limits: Limits):
    super().__init__(sandbox)
    self.backend, self.limits = backend, limits
    self.process = None
    self._starting = False
    self.counters: Counters | None = None
    self._start: tuple[int, float, int] = (0, 0.0, 0)
    self._refused_forks = 0
    filter_code = seccomp.task_filter()
    self.setup = {
      "box": "wipe",
      "guest_kernel": backend.runtime == "runsc",  # with fewer limits, and other ways
      "cgroup_fds": [],
      "seccomp": base64.b64encode(filter_code).decode(),
      "preload": backend.preload,
    }
    guest_kernel = self.setup["guest_kernel"]
    self.enforced = {
      "memory": f"container, with {SUPERVISOR_MB} MiB on top for the supervisor",
      "pids": "supervisor; control group far above" if guest_kernel else "container",
      "cpu": "rlimit for each process",
      "wall": "supervisor and host",
      "disk": "supervisor; sizes of three tmpfs, together 11/8 of the limit",
      "output": "supervisor",
      "network": "none",
      "calls": "guest kernel and seccomp" if guest_kernel else "seccomp",
    }

  def command(self) -> list[str]:
    limits, backend = self.limits, self.backend
    memory = f"{limits.memory_mb + SUPERVISOR_MB}m"
    # Under runsc the cap counts gVisor's own helpers, several for each guest process.
    pids = 16 * limits.pids + 256 if backend.runtime == "runsc" else limits.pids + 1
    inodes = 1024 + 256 * limits.disk_mb
    mount = f"rw,exec,nosuid,nodev,mode=1777,nr_inodes={inodes}"
    options = ["--name", self.sandbox, "--label", f"{LABEL}={self.sandbox.rpartition('-')[0]}"]
    options += ["--runtime", backend.runtime, "--pull", "never", "--rm", "--log-driver", "none"]
    options += ["--network", "none", "--hostname", "sandbox", "--ipc", "private", "--read-only"]
    options += ["--tmpfs", f"/work:{mount},size={limits.disk_mb << 10}k"]
    options += ["--tmpfs", f"/tmp:{mount},size={limits.disk_mb << 8}k"]
    options += ["--shm-size", f"{limits.disk_mb << 7}k"]
    options += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(pids)]
    options += ["--user", "0:0", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    if backend.runtime == "runc":  # gVisor does not hand the guest's calls on to this kernel
      options += ["--security-opt", f"seccomp={seccomp.docker_profile()}"]
    for capability in CAPABILITIES:
      options += ["--cap-add", capability]
    options += ["--ulimit", "core=0", "--env", "LANG=C.UTF-8"]
    python = ["python3", "-B", "-c", BOOTSTRAP.format(size=len(GUEST))]
    return [backend.program, "run", "-i", *options, backend.image, *python]

  async def start(self) -> None:
    await self.backend.starts.acquire()
    self._starting = True
    self.process = await asyncio.create_subprocess_exec(
      *self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
    )

  async def started(self) -> None:
    """Looks at the limits that are in force. Raises SandboxLost if they are not those asked."""
    self._end_start()
    pid = await self.backend.call("inspect", "--format", "{{.State.Pid}}", self.sandbox)
    self.counters = counters_of(int(pid)) if os.path.exists(f"/proc/{pid}/cgroup") else None
    if self.counters is None:
      self.enforced["memory"] += ", not checked: its control group is not visible here"
      return
    asked = (self.limits.memory_mb + SUPERVISOR_MB) << 20
    if self.counters.memory_limit() > asked:
      raise SandboxLost(
        f"{self.backend.name} does not enforce --memory; see the runtime's cgroup flags"
      )
    self.counters.watch_oom()
    self.enforced["cpu"] = "control group, watched by the host; rlimit for each process"

  def fits(self, limits: Limits) -> bool:
    fixed = ("memory_mb", "pids", "disk_mb")
    return all(getattr(limits, name) == getattr(self.limits, name) for name in fixed)

  def prepare(self, limits: Limits) -> None:
    if self.counters:
      if os.geteuid() == 0:
        self.counters.reset_peak()
      self.counters.forget_oom()
      counters, self._refused_forks = self.counters, 0
      self._start = (counters.oom_kills(), counters.cpu_s() or 0.0, counters.refused_forks())

  def rlimits(self, limits: Limits) -> tuple[int, int]:
    return 0, limits.pids if self.backend.runtime == "runsc" else 0

  def usage(self) -> Usage:
    if not self.counters:
      return Usage(0, None, 0)
    try:
      kills = self.counters.oom_kills() - self._start[0]
      cpu_s = (self.counters.cpu_s() or 0.0) - self._start[1]
      self._refused_forks = self.counters.refused_forks() - self._start[2]
      return Usage(kills, cpu_s, self.counters.peak_bytes(), self._refused_forks)
    except OSError:  # the container is gone, and its group with it
      return Usage(int(self.counters.saw_oom()), None, 0, self._refused_forks)

  def _end_start(self) -> None:
    if self._starting:
      self._starting = False
      self.backend.starts.release()

  async def end(self) -> None:
    if self._starting:  # no more of its command; but the daemon may yet make the container
      self.backend.in_doubt.add(self.sandbox)
      if self.process:
        kill_child(self.process)
        await self.process.wait()
    self._end_start()
    if self.process and self.process.stdin:
      self.process.stdin.close()  # upon which the supervisor ends, and the container with it
    if self.process:
      try:
        await self.backend.call("rm", "-f", self.sandbox)
      except SandboxLost as e:
        if "No such container" not in str(e):
          self.backend.in_doubt.add(self.sandbox)
          os.write(self.log, str(e).encode())
      kill_child(self.process)
      await self.process.wait()
    if self.counters:
      self.counters.close()
