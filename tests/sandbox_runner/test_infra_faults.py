"""What the pool stands on fails: each fault ends in a typed infra failure, and the pool heals."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from sandbox_faults import (
  Daemon,
  HangingDocker,
  containers,
  docker,
  first_process,
  named,
  parent,
  runs,
  until,
)

from sandbox_runner import Limits, NoBackendError, Outcome, Pool, PoolConfig, Request, Result
from sandbox_runner.backends.docker import DockerBackend
from sandbox_runner.images import ensure_host_image
from sandbox_runner.journal import LABEL, Journal, reap, state_directory
from sandbox_runner.sandbox import Sandbox
from sandbox_runner.types import SandboxLost

REPOSITORY = Path(__file__).parent.parent.parent
SLEEP = Request(("sh", "-c", "sleep 3; echo woke", "4327"))
ECHO = Request(("echo", "healed"))
RUNC = {"backend": "docker", "runtime": "runc"}


def sleeping() -> bool:
  return bool(runs("sh", "-c", "sleep 3; echo woke", "4327"))


async def lose(pool: Pool, kill) -> Result:
  """What becomes of a run while which `kill` is called."""
  call = asyncio.create_task(pool.run(SLEEP))
  await until(sleeping)
  kill()
  return await call


@pytest.mark.docker
@pytest.mark.parametrize("victim", ["supervisor", "shim", "command"])
def test_killed_part_of_a_container_is_survived(victim: str):
  """The run is made again in another container, and of the lost one nothing is left."""

  async def go():
    async with Pool(PoolConfig(size=1, **RUNC)) as pool:
      name = pool.idle()[0].name
      supervisor = first_process(name)
      pid = {
        "supervisor": supervisor,
        "shim": parent(supervisor),
        "command": pool.idle()[0].vessel.process.pid,
      }[victim]
      result = await lose(pool, lambda: os.kill(pid, signal.SIGKILL))
      assert pool.idle()[0].name != name
      await until(lambda: containers(name) == [])
      return result, await pool.run(ECHO), pool.runner

  result, following, runner = asyncio.run(go())
  assert (result.outcome, result.stdout) == (Outcome.exit, b"woke\n")
  assert following.stdout == b"healed\n"
  assert containers(runner) == []
  assert named(runner) == {}


def test_killed_supervisor_of_bwrap_is_survived():
  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:
      vessel = pool.idle()[0].vessel
      kill = lambda: signal.pidfd_send_signal(vessel.supervisor, signal.SIGKILL)  # noqa: E731
      return await lose(pool, kill), await pool.run(ECHO), pool.runner

  result, following, runner = asyncio.run(go())
  assert (result.outcome, result.stdout) == (Outcome.exit, b"woke\n")
  assert following.stdout == b"healed\n"
  assert named(runner) == {}


@pytest.mark.docker
def test_hanging_docker_at_the_start(tmp_path: Path, monkeypatch):
  monkeypatch.setattr("sandbox_runner.backends.docker.CLI_S", 0.5)
  monkeypatch.setattr("sandbox_runner.journal.CLI_S", 0.5)
  HangingDocker(tmp_path, monkeypatch).hang()
  with pytest.raises(NoBackendError, match="no answer within") as caught:
    asyncio.run(Pool(PoolConfig(**RUNC)).__aenter__())
  assert "\n" not in str(caught.value)
  assert runs("sleep", "4326") == []


@pytest.mark.docker
def test_hanging_docker_under_a_running_pool(tmp_path: Path, monkeypatch):
  """The second tenant needs a new container, for which the command does not come back."""
  command = HangingDocker(tmp_path, monkeypatch)
  second = Request(("true",), tenant="second")

  async def go():
    async with Pool(PoolConfig(size=1, **RUNC)) as pool:
      await pool.run(Request(("true",), tenant="first"))
      monkeypatch.setattr("sandbox_runner.sandbox.BOOTSTRAP_LIMIT_S", 1.0)
      monkeypatch.setattr("sandbox_runner.backends.docker.CLI_S", 1.0)
      command.hang()
      cut = await pool.run(second, deadline_s=0.5)
      failed = await pool.run(second)
      monkeypatch.undo()
      command.answer()
      return cut, failed, await pool.run(ECHO), pool.runner

  cut, failed, healed, runner = asyncio.run(go())
  assert cut.outcome == Outcome.cancelled
  assert failed.outcome == Outcome.infra_error
  assert "did not start" in failed.detail
  assert healed.stdout == b"healed\n"
  assert containers(runner) == []
  assert runs("sleep", "4326") == []
  assert named(runner) == {}


@pytest.mark.docker
def test_docker_calls_are_bounded(tmp_path: Path, monkeypatch):
  """All hang: never more at a time than the bound, and each ends in its time with an error."""
  backend = DockerBackend(ensure_host_image("docker"), "runc")
  bound, most = max(2, os.cpu_count()), 0
  command = HangingDocker(tmp_path, monkeypatch)
  backend.program = shutil.which("docker")
  monkeypatch.setattr("sandbox_runner.backends.docker.CLI_S", 2.0)
  monkeypatch.setattr("sandbox_runner.sandbox.BOOTSTRAP_LIMIT_S", 2.0)
  command.hang()

  async def go(calls):
    nonlocal most
    tasks = [asyncio.ensure_future(call) for call in calls]
    while not all(task.done() for task in tasks):
      most = max(most, len(runs("sleep", "4326")))
      await asyncio.sleep(0.02)
    return [type(task.exception()) for task in tasks]

  async def calls_then_starts(many: int):
    """In one loop, to which the backend's bounds belong."""
    calls = await go(backend.call("version") for _ in range(many))
    most_calls = most
    opens = (Sandbox.open(f"test-{os.getpid()}-{i}", backend, Limits()) for i in range(many))
    return [*calls, *await go(opens)], most_calls

  many = bound + 3
  errors, most_calls = asyncio.run(calls_then_starts(many))
  assert errors == [SandboxLost] * 2 * many
  assert 0 < most_calls <= bound
  assert most <= 2 * bound  # of starts, and of removals beside them
  assert runs("sleep", "4326") == []


@pytest.mark.docker
def test_pool_that_cannot_remove_its_containers_leaves_word(tmp_path: Path, monkeypatch):
  """Docker hangs as the pool closes: the journal stays, for a reaper that finds docker again."""
  command = HangingDocker(tmp_path, monkeypatch)

  async def go():
    async with Pool(PoolConfig(size=1, **RUNC)) as pool:
      monkeypatch.setattr("sandbox_runner.backends.docker.CLI_S", 0.5)
      monkeypatch.setattr("sandbox_runner.journal.CLI_S", 0.5)
      command.hang()
    return pool.runner

  runner = asyncio.run(go())
  journal = state_directory() / f"{runner}.jsonl"
  assert journal.exists()
  reap()
  assert journal.exists()
  monkeypatch.undo()
  reap()
  assert not journal.exists()
  assert containers(runner) == []
  assert named(runner) == {}


@pytest.mark.docker
def test_reaper_comes_back_for_a_container(tmp_path: Path, monkeypatch):
  journal = Journal.create()
  name = f"{journal.runner}-1"
  journal.add("containers", [name])
  label = f"{LABEL}={journal.runner}"
  options = ("--network", "none", "--label", label, "--name", name, "--runtime", "runc")
  docker("run", "-d", *options, ensure_host_image("docker"), "sleep", "4329")
  journal.close(all_removed=False)
  command = HangingDocker(tmp_path, monkeypatch)
  monkeypatch.setattr("sandbox_runner.journal.CLI_S", 0.5)
  command.hang()
  reap()
  assert runs("sleep", "4329")
  monkeypatch.undo()
  assert len(reap()) == 1
  assert containers(name) == []
  assert not runs("sleep", "4329")
  assert not journal.path.exists()


@pytest.fixture
def dead_image():
  """The host's image with a python3 that never says a word."""
  image, name = ensure_host_image("docker"), "sandbox_runner/test-dead-image"
  made = docker("create", image, "true").strip()
  script = "#!/bin/sh\nexec sleep 4328\n"
  subprocess.run(
    ["docker", "cp", "-", f"{made}:/usr/bin"], input=tar_of("python3", script), check=True
  )
  docker("commit", made, name)
  docker("rm", made)
  yield name
  docker("rmi", name)


def tar_of(name: str, text: str) -> bytes:
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as tar:
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o755, len(text)
    tar.addfile(info, io.BytesIO(text.encode()))
  return buffer.getvalue()


@pytest.mark.docker
def test_image_that_never_becomes_ready(dead_image: str, monkeypatch):
  monkeypatch.setattr("sandbox_runner.sandbox.BOOTSTRAP_LIMIT_S", 2.0)
  pool = Pool(PoolConfig(size=2, image=dead_image, **RUNC))
  with pytest.raises(NoBackendError, match="sandboxes do not start here"):
    asyncio.run(pool.__aenter__())
  assert containers(pool.runner) == []
  assert named(pool.runner) == {}


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a daemon")
def test_killed_daemon_that_restarts(monkeypatch):
  daemon = Daemon()
  monkeypatch.setenv("DOCKER_HOST", daemon.host)

  async def go():
    async with Pool(PoolConfig(size=1, **RUNC)) as pool:
      lost = await lose(pool, daemon.kill)
      again = await pool.run(ECHO)
      await asyncio.to_thread(daemon.start)
      healed = await pool.run(ECHO)
      await until(lambda: len(containers(pool.runner)) == 1)
      return lost, again, healed, pool.runner

  try:
    daemon.start()
    lost, again, healed, runner = asyncio.run(go())
    assert lost.outcome in (Outcome.infra_error, Outcome.sandbox_lost)
    assert again.outcome == Outcome.infra_error
    assert healed.stdout == b"healed\n"
    assert containers(runner) == []
    assert named(runner) == {}
  finally:
    daemon.remove()


FULL_DISK = """
import asyncio, os
from sandbox_runner import *

async def main():
  disk = os.environ["XDG_RUNTIME_DIR"]
  async with Pool(PoolConfig("bwrap", 1, runs_per_sandbox=1)) as pool:
    with open(f"{disk}/filler", "wb", buffering=0) as f:
      try:
        while f.write(bytes(4096)): pass
      except OSError:
        pass
    lost = [await pool.run(Request(("true",))) for _ in range(40)][-1]
    print(lost.outcome, "No space left" in lost.detail, flush=True)
    try:
      await Pool(PoolConfig("bwrap", 1)).__aenter__()
    except NoBackendError as e:
      print("No space left" in str(e))
    os.unlink(f"{disk}/filler")
    print((await pool.run(Request(("echo", "healed")))).stdout)
    runner = pool.runner
  print([n for n in os.listdir(f"{disk}/sandbox_runner-0") if runner in n])

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disk_of_the_journal(tmp_path: Path):
  """What cannot be written down is not made. The disk is in a mount namespace of the child's."""
  script = 'mount -t tmpfs -o size=64k tmpfs "$XDG_RUNTIME_DIR" && exec "$1" -c "$2"'
  done = subprocess.run(
    ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, FULL_DISK],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_RUNTIME_DIR": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == ["infra_error True", "True", "b'healed\\n'", "[]"]


def test_journal_that_cannot_be_made(tmp_path: Path, monkeypatch):
  monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
  with pytest.raises(NoBackendError, match="the journal of what is to be removed"):
    asyncio.run(Pool(PoolConfig("bwrap", 1)).__aenter__())


HALF_A_LINE = """
import os, resource
from sandbox_runner.journal import Journal

journal = Journal.create()
journal.add("launchers", ["first"])
size, (soft, hard) = os.path.getsize(journal.path), resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
try:
  journal.add("launchers", ["half"])
except OSError as e:
  print(e.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.add("launchers", ["last"])
print(journal.path.read_text(), end="")
journal.close(all_removed=True)
"""


def test_half_a_journal_line_is_taken_back():
  done = subprocess.run(
    [sys.executable, "-c", HALF_A_LINE], capture_output=True, text=True, cwd=REPOSITORY, check=True
  )
  assert done.stdout.splitlines() == [
    "No space left on device",
    '{"launchers": ["first"]}',
    '{"launchers": ["last"]}',
  ]
