"""The filters of system calls: one for all that runs in a sandbox, and one more for tasks.

`supervisor.json` lists what anything in a sandbox may call, `task.json` what tasks may not, each
group with its reason. Both are in the format of docker's `--security-opt seccomp=FILE`: docker
takes the first as it is, and `sandbox_runner.seccomp.build` makes BPF code of both for bubblewrap
and for tasks. A call has to pass every filter that is laid on, and the last one names the error.
"""

import base64
import platform
from pathlib import Path

from sandbox_runner.seccomp import programs

POLICIES = {name: Path(__file__).parent / f"{name}.json" for name in ("supervisor", "task")}


def task_filter() -> bytes:
  """BPF code that each task lays on itself; empty if there is none for this processor."""
  return _program("task")


def supervisor_filter() -> bytes:
  """BPF code for a supervisor that makes namespaces; empty if there is none for this processor."""
  return _program("supervisor")


def docker_profile() -> Path:
  """The file for docker's `--security-opt seccomp=`."""
  return POLICIES["supervisor"]


def _program(policy: str) -> bytes:
  return base64.b64decode(programs.PROGRAMS.get((policy, platform.machine()), ""))
