"""Is a sandbox as closed as it must be? Measured from inside by a probe, judged here.

The probe is a program like any other and takes the way of any other. What it says is only trusted
for what it is meant for: to find a backend or an image that is set up wrongly.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox_runner.types import Limits, Outcome, Request, Result

PROBE = Path(__file__).parent / "posture_probe.py"
TENANT = "posture"
KERNEL_TYPES = {"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"}
READ_ONLY_TYPES = {"sysfs", "cgroup", "cgroup2"}  # they show what is the host's
SYSTEM_POINTS = {
  *("/", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
  *("/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group"),
  *("/etc/resolv.conf", "/etc/hostname", "/etc/hosts"),
}
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NO_WAY = {"ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EAFNOSUPPORT", "EADDRNOTAVAIL", "EPERM"}
DENIALS = {"EPERM", "EAFNOSUPPORT"}
# What an image or a sandbox sets by itself, and the host perhaps to the same value.
COMMON_VARIABLES = {"PATH", "HOME", "LANG", "PWD", "HOSTNAME", "TERM", "SHLVL", "_"}
COMMON_VARIABLES |= {"OPENBLAS_NUM_THREADS"}


class PostureError(ValueError):
  """Sandboxes are not as closed as they must be. `checks` are the names of those that failed."""

  def __init__(self, backend: str, failed: Mapping[str, str]):
    self.checks = tuple(failed)
    found = "; ".join(f"{name}: {detail}" for name, detail in failed.items())
    super().__init__(f"{backend} sandboxes fail posture checks: {found}")


@dataclass(frozen=True)
class Host:
  """What the judgement needs to know of this host.

  Attributes:
    devices: numbers of the mounted file systems; empty if the sandbox has a kernel of its own, in
      which the same numbers stand for others.
    environment: of this process.
    read_only: further mount points that the backend has for the system.
  """

  devices: frozenset[str]
  environment: Mapping[str, str]
  read_only: frozenset[str] = frozenset()


def this_host(own_kernel: bool, python: str) -> Host:
  """Seen from here. `python` is the interpreter of the sandboxes if it is the host's."""
  lines = Path("/proc/self/mountinfo").read_text().splitlines()
  devices = frozenset() if own_kernel else frozenset(line.split()[2] for line in lines)
  prefix = str(Path(python).parent.parent)
  return Host(devices, dict(os.environ), frozenset({prefix} - {"/", "/usr"}))


def no_socket(facts: dict, _: Host) -> str:
  return _listed("sockets of the host's daemons", facts["sockets"])


def system_mounts_only(facts: dict, host: Host) -> str:
  bad = []
  for point, device, kind, options in facts["mounts"]:
    is_hosts = kind not in KERNEL_TYPES or (device in host.devices and kind == "tmpfs")
    is_system = point in SYSTEM_POINTS | host.read_only and "ro" in options
    if is_hosts and not is_system and point not in DEVICES:
      bad.append(f"{point} ({kind}, {'read-only' if 'ro' in options else 'writable'})")
    elif kind in READ_ONLY_TYPES and "ro" not in options:
      bad.append(f"{point} ({kind}, writable)")
  bad += [f"{d} can be written to" for d in facts["written"]]
  return _listed("mounts of the host", bad)


def no_capability(facts: dict, _: Host) -> str:
  sets = {n: facts["status"].get(n, "0") for n in CAPABILITY_SETS}
  if not set(CAPABILITY_SETS[:4]) <= set(facts["status"]):
    return "the capability sets cannot be read"
  return _listed("capabilities", [f"{n} {v}" for n, v in sets.items() if int(v, 16)])


def no_new_privileges(facts: dict, _: Host) -> str:
  return "" if facts["no_new_privs"] == 1 else "a program may gain privileges by exec"


def no_network(facts: dict, _: Host) -> str:
  ways = {*facts["interfaces"], *facts["routes"]} - {"lo"}
  return _listed("interfaces or routes", sorted(ways))


def no_metadata(facts: dict, _: Host) -> str:
  reached = {a: e for a, e in facts["connection_errors"].items() if e not in NO_WAY}
  return _listed("ways to", [f"{a} ({e or 'connected'})" for a, e in reached.items()])


def calls_filtered(facts: dict, _: Host) -> str:
  if facts["status"].get("Seccomp") != "2":
    return "no filter is active"
  let = [f"{call} ({e or 'allowed'})" for call, e in facts["filtered_calls"].items()]
  return _listed("calls let through", [c for c in let if c.rpartition("(")[2][:-1] not in DENIALS])


def not_root(facts: dict, _: Host) -> str:
  return "" if facts["users"] and all(facts["users"]) else "a user or group of the task is root"


def environment_kept(facts: dict, host: Host) -> str:
  leaked = []
  for variable in facts["environments"]:
    name, _, value = variable.partition("=")
    if value and name not in COMMON_VARIABLES and host.environment.get(name) == value:
      leaked.append(name)
  return _listed("variables of the host", leaked)


CHECKS: dict[str, Callable[[dict, Host], str]] = {
  "docker-socket": no_socket,
  "mounts": system_mounts_only,
  "capabilities": no_capability,
  "no-new-privs": no_new_privileges,
  "network": no_network,
  "metadata": no_metadata,
  "seccomp": calls_filtered,
  "user": not_root,
  "host-environment": environment_kept,
}


def _listed(what: str, found: Iterable[str]) -> str:
  shown = list(found)
  return f"{what}: {', '.join(shown[:5])}{' ...' if len(shown) > 5 else ''}" if shown else ""


def probe_request(limits: Limits) -> Request:
  """`limits` are those of the pool, so that its warm sandbox fits; a run needs some room."""
  roomy = replace(limits, wall_s=20.0, cpu_s=20.0, output_bytes=1 << 20)
  return Request(
    ("python3", "probe.py"), {"probe.py": PROBE.read_bytes()}, limits=roomy, tenant=TENANT
  )


def judge_posture(result: Result, host: Host) -> dict[str, str]:
  """Check -> what is wrong, "" where nothing is. Raises PostureError if the probe ended badly."""
  try:
    if result.outcome != Outcome.exit or result.exit_code:
      raise ValueError(f"{result.outcome} {result.detail or result.stderr[-200:]!r}")
    facts = json.loads(result.stdout)
    return {name: check(facts, host) for name, check in CHECKS.items()}
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise PostureError(result.backend, {"probe": f"it gave no facts: {e}"}) from e


def check_names(names: Iterable[str]) -> None:
  """Raises ValueError for a name that no check has."""
  for name in names:
    if name not in CHECKS:
      raise ValueError(f"{name!r} is no posture check; there are {', '.join(CHECKS)}")
