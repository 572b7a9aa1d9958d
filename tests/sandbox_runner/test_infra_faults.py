"""What the pool stands on fails: each fault ends in a typed infra failure, and the pool heals."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import tarfile
from dataclasses import replace
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

from sandbox_runner import (
  Limits,
  NoBackendError,
  Outcome,
  Pool,
  PoolConfig,
  Request,
  Result,
  SessionLost,
)
from sandbox_runner.backends.docker import DockerBackend
from sandbox_runner.images import ensure_host_image
from sandbox_runner.journal import LABEL, Journal, reap, state_directory
from sandbox_runner.sandbox import Sandbox
from sandbox_runner.types import SandboxLost

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


def test_hanging_supervisor():
  """It answers nothing any more, in the middle of a run, of a session, and of a reading."""

  async def go():
    async with Pool(PoolConfig("bwrap", 1)) as pool:

      def stop():
        signal.pidfd_send_signal(vessel.supervisor, signal.SIGSTOP)

      vessel = pool.idle()[0].vessel
      call = asyncio.create_task(pool.run(replace(SLEEP, limits=Limits(wall_s=1.0))))
      await until(sleeping)
      stop()
      ended = await call
      async with pool.lease() as session:
        vessel = session.sandbox.vessel
        stop()
        with pytest.raises(SessionLost):
          await session.read_files("x")
        with pytest.raises(SessionLost):
          await session.exec(("true",))
      return ended, await pool.run(ECHO), pool.runner

  ended, following, runner = asyncio.run(go())
  assert ended.outcome == Outcome.timeout
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
def test_docker_command_that_is_gone(tmp_path: Path, monkeypatch):
  """No container can be ended by it any more: the pool still closes, and none is left."""
  command = HangingDocker(tmp_path, monkeypatch)

  async def go():
    async with Pool(PoolConfig(size=1, **RUNC)) as pool:
      command.vanish()
    await until(lambda: containers(pool.runner) == [])  # the daemon may be at it still
    return pool.runner

  assert named(asyncio.run(go())) == {}


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
