"""Posture: what the probe finds in sound sandboxes and in ones that are opened up on purpose."""

import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import Outcome, Pool, PoolConfig, PostureError, Request, Result, seccomp
from sandbox_runner.backends.bwrap import BwrapBackend, BwrapVessel
from sandbox_runner.posture import CHECKS, Host, judge_posture

SOUND = {
  "mounts": [
    ["/", "0:40", "tmpfs", ["ro"]],
    ["/usr", "254:0", "ext4", ["ro", "nosuid"]],
    ["/dev/null", "0:6", "devtmpfs", ["rw"]],
    ["/proc", "0:41", "proc", ["rw"]],
    ["/work", "0:45", "tmpfs", ["rw"]],
    ["/opt/python", "254:0", "ext4", ["ro"]],
    ["/sys/fs/cgroup/memory", "0:29", "cgroup", ["ro"]],
  ],
  "status": {
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
    "Seccomp": "2",
  },
  "no_new_privs": 1,
  "users": [65534] * 6,
  "interfaces": ["lo"],
  "routes": ["lo"],
  "connection_errors": {"169.254.169.254": "ENETUNREACH", "fd00:ec2::254": "ENETUNREACH"},
  "sockets": [],
  "filtered_calls": {"unshare": "EPERM", "socket": "EAFNOSUPPORT"},
  "written": [],
  "environments": ["PATH=/usr/bin", "LANG=C.UTF-8", "MINE=1"],
}
HOST = Host(
  devices=frozenset({"254:0", "0:6", "0:24", "0:29"}),
  environment={"PATH": "/usr/bin", "API_KEY": "secret", "MINE": "2", "EMPTY": ""},
  read_only=frozenset({"/opt/python"}),
)


def judged(facts: dict, host: Host = HOST) -> dict[str, str]:
  result = Result(Outcome.exit, 0, stdout=json.dumps(facts).encode(), backend="bwrap")
  return {name: detail for name, detail in judge_posture(result, host).items() if detail}


def test_sound_facts_pass():
  assert judged(SOUND) == {}


@pytest.mark.parametrize(
  ("check", "change"),
  [
    ("docker-socket", {"sockets": ["/run/docker.sock"]}),
    ("mounts", {"mounts": [["/srv", "254:0", "ext4", ["ro"]]]}),
    ("mounts", {"mounts": [["/usr", "254:0", "ext4", ["rw"]]]}),
    ("mounts", {"mounts": [["/host-run", "0:24", "tmpfs", ["rw"]]]}),
    ("mounts", {"mounts": [["/data", "0:99", "9p", ["rw"]]]}),
    ("mounts", {"mounts": [["/dev/sda", "0:6", "devtmpfs", ["rw"]]]}),
    ("mounts", {"mounts": [["/sys", "0:22", "sysfs", ["rw"]]]}),
    ("mounts", {"written": ["/usr"]}),
    ("capabilities", {"status": {**SOUND["status"], "CapEff": "0000000000000400"}}),
    ("capabilities", {"status": {**SOUND["status"], "CapBnd": "000001ffffffffff"}}),
    ("capabilities", {"status": {"Seccomp": "2"}}),
    ("no-new-privs", {"no_new_privs": 0}),
    ("network", {"interfaces": ["lo", "eth0"]}),
    ("network", {"routes": ["eth0"]}),
    ("metadata", {"connection_errors": {"169.254.169.254": ""}}),
    ("metadata", {"connection_errors": {"169.254.169.254": "ECONNREFUSED"}}),
    ("metadata", {"connection_errors": {"169.254.169.254": "timed out"}}),
    ("seccomp", {"status": {**SOUND["status"], "Seccomp": "0"}}),
    ("seccomp", {"filtered_calls": {"unshare": ""}}),
    ("seccomp", {"filtered_calls": {"io_uring_setup": "EFAULT"}}),
    ("user", {"users": [65534, 65534, 65534, 65534, 65534, 65534, 0]}),
    ("user", {"users": []}),
    ("host-environment", {"environments": ["API_KEY=secret"]}),
  ],
)
def test_each_check_fails_by_its_name(check: str, change: dict):
  found = judged({**SOUND, **change})
  assert list(found) == [check]


def test_device_numbers_of_another_kernel_mean_nothing():
  facts = {**SOUND, "mounts": [["/tmp", "0:24", "tmpfs", ["rw"]]]}
  assert list(judged(facts)) == ["mounts"]
  assert judged(facts, replace(HOST, devices=frozenset())) == {}


@pytest.mark.parametrize(
  "result",
  [
    Result(Outcome.oom),
    Result(Outcome.exit, 1, stdout=json.dumps(SOUND).encode()),
    Result(Outcome.exit, 0, stdout=b"no JSON"),
    Result(Outcome.exit, 0, stdout=b"[]"),
    Result(Outcome.exit, 0, stdout=json.dumps({**SOUND, "users": None, "mounts": 3}).encode()),
    Result(Outcome.exit, 0, stdout=json.dumps({**SOUND, "mounts": [[1]]}).encode()),
  ],
)
def test_probe_that_gives_no_facts_is_a_failure(result: Result):
  with pytest.raises(PostureError, match="probe") as caught:
    judge_posture(result, HOST)
  assert caught.value.checks == ("probe",)


def test_every_backend_holds(driver: Driver):
  assert driver.pool.posture == dict.fromkeys(CHECKS, "")


def test_probe_leaves_the_warm_sandbox_to_the_first_tenant():
  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      (sandbox,) = pool.idle()
      return sandbox.tenant

  assert asyncio.run(go()) is None


def open_up(monkeypatch, **changes) -> None:
  """Real sandboxes whose bwrap gets other options: `add` further ones, `drop` is left out."""
  command = BwrapVessel.command

  def weaker(self, *fds):
    before, _, program = command(self, *fds), None, self.backend.program
    options = [o for o in before[1:] if o not in changes.get("drop", ())]
    at = options.index("--proc")
    return [program, *options[:at], *changes.get("add", ()), *options[at:]]

  monkeypatch.setattr(BwrapVessel, "command", weaker)


async def start(audit: Path, **config) -> Pool:
  pool = Pool(PoolConfig("bwrap", 1, audit_path=str(audit), **config))
  async with pool:
    assert (await pool.run(Request(("echo", "runs")))).stdout == b"runs\n"
  return pool


def refused(audit: Path, **config) -> tuple[str, ...]:
  with pytest.raises(PostureError) as caught:
    asyncio.run(start(audit, **config))
  assert all(name in str(caught.value) for name in caught.value.checks)
  return caught.value.checks


def test_bound_directory_of_the_host_is_found(tmp_path: Path, monkeypatch):
  open_up(monkeypatch, add=["--bind", "/var/tmp", "/opt"])
  assert refused(tmp_path / "audit") == ("mounts",)
  open_up(monkeypatch, add=["--ro-bind", "/var/tmp", "/srv"])
  assert refused(tmp_path / "audit") == ("mounts",)


def test_bound_socket_of_a_daemon_is_found(tmp_path: Path, open_directory: Path, monkeypatch):
  with socket.socket(socket.AF_UNIX) as daemon:
    path = open_directory / "docker.sock"
    daemon.bind(str(path))
    open_up(monkeypatch, add=["--bind", str(path), "/run/docker.sock"])
    assert set(refused(tmp_path / "audit")) == {"docker-socket", "mounts"}


def test_network_of_the_host_is_found(tmp_path: Path, monkeypatch):
  open_up(monkeypatch, drop=["--unshare-net"])
  assert "network" in refused(tmp_path / "audit")


def drop_filters(monkeypatch, *names: str) -> None:
  for name in names or ("task_filter", "supervisor_filter"):
    monkeypatch.setattr(seccomp, name, lambda: b"")


@pytest.mark.parametrize("names", [(), ("task_filter",)], ids=["both", "of tasks"])
def test_missing_filter_is_found(tmp_path: Path, monkeypatch, names: tuple[str, ...]):
  drop_filters(monkeypatch, *names)
  assert refused(tmp_path / "audit") == ("seccomp",)


def test_environment_of_the_host_is_found(tmp_path: Path, monkeypatch):
  monkeypatch.setenv("API_KEY", "secret-of-the-host")
  open_up(monkeypatch, add=["--setenv", "API_KEY", os.environ["API_KEY"]])
  assert refused(tmp_path / "audit") == ("host-environment",)


def test_refusal_leaves_nothing(tmp_path: Path, monkeypatch):
  started = []
  open_sandbox = BwrapBackend.open

  async def note(self, *arguments):
    started.append(await open_sandbox(self, *arguments))
    return started[-1]

  monkeypatch.setattr(BwrapBackend, "open", note)
  drop_filters(monkeypatch)
  refused(tmp_path / "audit")
  assert started
  assert all(vessel.process.returncode is not None for vessel in started)


def test_waiver_is_honoured_and_written_down(tmp_path: Path, monkeypatch):
  drop_filters(monkeypatch)
  audit = tmp_path / "audit"
  pool = asyncio.run(start(audit, waived_checks=("seccomp", "user")))
  assert pool.posture["seccomp"]
  (entry,) = [e for e in map(json.loads, audit.read_text().splitlines()) if e["event"] == "posture"]
  assert entry["waived"] == {"seccomp": "no filter is active", "user": ""}
  assert entry["failed"] == {}


def test_refusal_is_written_down(tmp_path: Path, monkeypatch):
  drop_filters(monkeypatch)
  audit = tmp_path / "audit"
  refused(audit, waived_checks=("user",))
  entry = json.loads(audit.read_text().splitlines()[-1])
  assert (entry["event"], list(entry["failed"])) == ("posture", ["seccomp"])


def test_unknown_waiver_is_refused():
  with pytest.raises(ValueError, match=r"'firewall' is no posture check; there are docker-socket"):
    PoolConfig(waived_checks=("firewall",))
