"""Runs the conformance cases of tests/hostile and looks at the host afterwards."""

import asyncio
import json
import os
import platform
import secrets
import time
from pathlib import Path

import hostile_cases
import pytest
from sandbox_driver import Driver
from sandbox_host import (
  Footprint,
  Listener,
  container_directories,
  descendants,
  escaped_files,
  mounts,
)

from sandbox_runner import Limits, Outcome, Pool, Request, RequestError
from sandbox_runner.grading import Grade
from sandbox_runner.journal import state_directory

CASES = hostile_cases.load()
RUNS = [
  (name, case)
  for whole in CASES.values()
  if whole.get("arch", platform.machine()) == platform.machine()
  for name, case in hostile_cases.variants(whole)
]
PATIENCE = 3  # `within_s` is for a machine that does nothing else
PLAIN = Request(
  (
    *("bash", "-c"),
    "shopt -s dotglob nullglob; echo plain; f=(/work/* /tmp/* /dev/shm/*); p=(/proc/[0-9]*)\n"
    "echo ${#f[@]} ${#p[@]}",
  )
)
PLAIN_OUTPUT = b"plain\n0 2\n"  # no file; the first process of the box, and bash


def test_every_word_is_checked():
  known = {name for name in dir(After) if not name.startswith("_")}
  for case in CASES.values():
    for word in case["expect"]["after"]:
      assert word.partition(":")[0] in known, word


@pytest.mark.parametrize(("name", "case"), RUNS, ids=[name for name, _ in RUNS])
def test_case(driver: Driver, name: str, case: dict, tmp_path: Path, monkeypatch):
  driver.run(run_case(driver, case, tmp_path, monkeypatch))


async def run_case(driver: Driver, case: dict, tmp_path: Path, monkeypatch) -> None:
  await until_ready(driver.pool)  # the state to compare with
  names, listeners = set_up_host(case, tmp_path, monkeypatch)
  memory_by = driver.pool.idle()[0].vessel.enforced["memory"]
  expect = hostile_cases.expectation(case, driver.pool.backend.name, memory_by)
  after = After(driver, names, listeners)
  looking = asyncio.create_task(after.look())
  quiet = None
  if "other_runs_unaffected" in expect["after"]:
    quiet = asyncio.create_task(driver.pool.run(Request(("echo", "quiet"))))
  results = []
  if expect.get("rejected"):
    with pytest.raises(RequestError):
      await driver.pool.run(hostile_cases.request(case, case["limits"], names))
  elif case.get("repeat"):
    results += await run_many(driver, case, expect)
  elif case.get("grade"):
    after.grade = await hostile_cases.graded(driver.pool, case)
    assert after.grade.verdict == expect["verdict"], after.grade
    hostile_cases.check(after.grade.result, expect, names)
    results.append(after.grade.result)
  else:
    started = time.monotonic()
    result = await driver.pool.run(hostile_cases.request(case, case["limits"], names))
    after.seconds = time.monotonic() - started
    assert after.seconds < PATIENCE * expect["within_s"]
    hostile_cases.check(result, expect, names)
    results.append(result)
  for run in case.get("then") or ():
    result = await driver.pool.run(hostile_cases.request(run, case["limits"], names))
    hostile_cases.check(result, run["expect"], names)
    results.append(result)
  after.results, after.case = results, case
  looking.cancel()
  for listener in listeners:
    listener.close()
  if quiet:
    assert (await quiet).stdout == b"quiet\n"
  for word in expect["after"]:
    name, _, argument = word.partition(":")
    await getattr(after, name)(argument)


async def until_ready(pool: Pool) -> None:
  """A supervisor answers when somebody waits in the next box."""
  for sandbox in pool.idle():
    await sandbox.read_back((), Limits(), tree=False)


async def run_many(driver: Driver, case: dict, expect: dict) -> list:
  gate = asyncio.Semaphore(case["repeat"]["parallel"])

  async def one(n: int):
    names = {"N": str(n)}
    async with gate:
      result = await driver.pool.run(hostile_cases.request(case, case["limits"], names))
    hostile_cases.check(result, expect, names)
    return result

  return await asyncio.gather(*(one(n) for n in range(case["repeat"]["count"])))


def set_up_host(case: dict, tmp_path: Path, monkeypatch) -> tuple[dict[str, str], list[Listener]]:
  """Makes what `host` of the case asks for. Returns the placeholders and the listeners."""
  canary = secrets.token_hex(16)
  names, listeners = {"CANARY": canary}, []
  for wanted in case.get("host") or ():
    if wanted == "env_canary":
      names["CANARY_ENV_NAME"] = "CANARY_" + secrets.token_hex(4).upper()
      monkeypatch.setenv(names["CANARY_ENV_NAME"], canary)
    elif wanted == "canary_file":
      names["CANARY_PATH"] = str(tmp_path / "canary")
      (tmp_path / "canary").write_text(canary)
    elif wanted == "tcp_listener":
      listeners.append(Listener("tcp"))
      names["HOST_TCP_PORT"] = listeners[-1].name
    elif wanted == "abstract_socket":
      listeners.append(Listener("abstract"))
      names["ABSTRACT_NAME"] = listeners[-1].name
    else:
      raise ValueError(f"the case asks the host for {wanted!r}, which this suite does not know")
  return names, listeners


NOT_REGULAR = {
  *("passwd.txt", "result.txt", "up.txt", "root", "loop", "inside.txt"),
  *("result.json", "pipe", "sock", "blk", "chr"),
}
RUNNER_ALONE_KB = 64 << 10
LOOK_S = 0.25
IN_USE = """
import os
places = {os.stat(p).st_dev: os.statvfs(p) for p in ("/work", "/tmp", "/dev/shm")}.values()
print(sum(p.f_bfree for p in places) == sum(p.f_blocks for p in places))
"""


def _memory_kb(field: str) -> int:
  return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


class After:
  """The words of `after`: each method asserts one. Made before the run, asked after it."""

  def __init__(self, driver: Driver, names: dict[str, str], listeners: list[Listener]):
    self._pool, self._names, self._listeners = driver.pool, names, listeners
    self._audit = Path(driver.pool.config.audit_path)
    self._audit_size = self._audit.stat().st_size
    self._mounts = mounts()
    self._ipc = _sysv_ipc()
    self.results, self.case = [], {}
    self.seconds = 0.0  # of the run and all that the pool did for it
    self._clocks = _clock_difference()
    self._footprint = Footprint(self._directories())
    self._inside_fds = self._supervisors_fds()
    self.grade: Grade | None = None
    Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory starts anew
    self._resident_kb = _memory_kb("VmRSS")

  def _entries(self) -> list[dict]:
    text = self._audit.read_bytes()[self._audit_size :]
    return [json.loads(line) for line in text.splitlines()]

  def _directories(self) -> list[Path]:
    """All on the host's disks that the pool may write to."""
    found = [state_directory(), self._audit.parent]
    for sandbox in self._pool.idle():
      if sandbox.backend != "bwrap":
        found += container_directories(sandbox.name)
    return found

  def _supervisors_fds(self) -> dict[str, int]:
    """How many descriptors the supervisor of each sandbox has, where this kernel knows them."""
    found = {}
    for sandbox in self._pool.idle():
      if sandbox.backend == "bwrap":
        info = Path(f"/proc/self/fdinfo/{sandbox.vessel.supervisor}").read_text()
        pid = info.partition("Pid:")[2].split()[0]
        found[sandbox.name] = len(os.listdir(f"/proc/{pid}/fd"))
    return found

  async def look(self) -> None:
    """While the case runs."""
    while True:
      self._footprint.look()
      await asyncio.sleep(LOOK_S)

  async def host_disk_growth_below_mb(self, megabytes: str) -> None:
    self._footprint.look()
    assert self._footprint.growth[0] < int(megabytes) << 20

  async def host_inode_growth_below(self, number: str) -> None:
    self._footprint.look()
    assert self._footprint.growth[1] < int(number)

  async def host_memory_back_to_start(self, _) -> None:
    """No file in memory is left: none in the next box, and nothing holds on to that of the last."""
    runs = (self._pool.run(Request(("python3", "-c", IN_USE))) for _ in self._pool.idle())
    assert {r.stdout for r in await asyncio.gather(*runs)} == {b"True\n"}
    for _ in range(100):  # the supervisor makes its next box after its report
      now = self._supervisors_fds()
      more = {
        n: now[n] - count for n, count in self._inside_fds.items() if now.get(n, count) > count
      }
      if not more:
        break
      await asyncio.sleep(0.05)
    assert not more

  async def host_clock_unchanged(self, _) -> None:
    """Against the clock that nobody can set."""
    assert abs(_clock_difference() - self._clocks) < 1

  async def no_process_left(self, _) -> None:
    """Below the runner: launcher, supervisor, the holder of the next box and who waits in it.

    In a container's control group: the supervisor and who waits (under runsc the kernel of the
    guest). Who waits is certainly there, so there is no room for anybody else.
    """
    await until_ready(self._pool)
    places = self._pool.config.size
    for _ in range(100):
      below = descendants(os.getpid())
      if len(below) <= (4 if self._pool.backend.name == "bwrap" else 3) * places:
        break
      await asyncio.sleep(0.05)
    else:
      raise AssertionError(below)
    for sandbox in self._pool.idle():
      if sandbox.backend == "docker+runc":
        assert len(sandbox.vessel.counters.processes()) == 2

  async def no_zombie_left(self, _) -> None:
    """None that stays: who has just ended is a zombie until its parent looks."""
    for _ in range(100):
      if "Z" not in descendants(os.getpid()).values():
        return
      await asyncio.sleep(0.05)
    raise AssertionError(descendants(os.getpid()))

  async def no_container_left(self, _) -> None:
    """Containers live as long as their place in the pool; see test_kill9 for their end."""

  async def no_mount_left(self, _) -> None:
    """None that stays, and none of the host's own is gone."""
    for _ in range(100):
      if mounts() == self._mounts:
        return
      await asyncio.sleep(0.05)
    assert mounts() == self._mounts

  async def no_file_outside_workdir(self, _) -> None:
    assert not escaped_files()

  async def next_run_clean(self, _) -> None:
    result = await self._pool.run(PLAIN)
    assert result.stdout == PLAIN_OUTPUT, result

  async def cleanup_within_s(self, seconds: str) -> None:
    started = time.monotonic()
    await asyncio.gather(*(self._pool.run(PLAIN) for _ in range(self._pool.config.size)))
    assert time.monotonic() - started < PATIENCE * float(seconds)

  async def other_runs_unaffected(self, _) -> None:
    """The quiet run beside it is started and looked at by `run_case`."""

  async def supervisor_alive(self, _) -> None:
    runs = [self._pool.run(Request(("sleep", "0.2"))) for _ in range(self._pool.config.size)]
    assert {r.outcome for r in await asyncio.gather(*runs)} == {Outcome.exit}

  async def journal_has_entry(self, _) -> None:
    outcomes = [e["outcome"] for e in self._entries()]
    wanted = [str(r.outcome) for r in self.results] or ["rejected"]
    assert set(wanted) <= set(outcomes)

  async def journal_one_entry_per_run(self, _) -> None:
    codes = sorted(e["exit_code"] for e in self._entries() if e["wall_s"] and e["exit_code"])
    assert [c for c in codes if c] == list(range(1, len(self.results)))

  async def host_rss_below_mb(self, megabytes: str) -> None:
    """What the run added, on top of a runner alone: this process has run other tests before."""
    added_kb = _memory_kb("VmHWM") - self._resident_kb
    assert RUNNER_ALONE_KB + added_kb < int(megabytes) << 10

  async def host_sysv_ipc_unchanged(self, _) -> None:
    assert _sysv_ipc() == self._ipc

  async def host_listener_saw_nothing(self, _) -> None:
    assert [listener.count for listener in self._listeners] == [0] * len(self._listeners)

  async def canary_env_absent(self, _) -> None:
    canary = self._names["CANARY"].encode()
    assert all(canary not in r.stdout + r.stderr for r in self.results)
    assert all(canary not in c for r in self.results for c in r.files.values())
    assert canary not in self._audit.read_bytes()

  async def canary_file_unread(self, _) -> None:
    await self.canary_env_absent(_)

  async def duration_from_host(self, _) -> None:
    assert all(0 < r.wall_s < 60 for r in self.results)

  async def verdict_from_host_side(self, _) -> None:
    """Every test was counted, and tests and tested code were never in one sandbox together."""
    count = self.case["grade"]["test_count"]
    assert len(self.grade.tests) == count
    assert (self.grade.verdict == "pass") == (list(self.grade.tests.values()) == ["passed"] * count)
    module = f"file:{self.case['grade']['module']}"
    held = [set(e.get("sha256", {})) & {module, "file:tests.py"} for e in self._entries()]
    assert {frozenset(h) for h in held if h} == {frozenset({module}), frozenset({"file:tests.py"})}

  async def copy_out_regular_only(self, _) -> None:
    for result in self.results:
      assert result.files, result
      assert not [n for n in result.files if n.split("/")[0] in NOT_REGULAR or "back" in n]
      assert not set(result.files) & set(result.left_out)

  async def copy_out_names_exact(self, _) -> None:
    """The names are those of the list in the program, the content of each is its place there."""
    scope: dict = {}
    exec(next(x for x in self.case["program"].splitlines() if x.startswith("names = ")), scope)
    wanted = {os.fsdecode(name): b"%d" % i for i, name in enumerate(scope["names"])}
    for result in self.results:
      assert {n: c for n, c in result.files.items() if n != "main.py"} == wanted

  async def copy_out_has(self, argument: str) -> None:
    name, _, text = argument.partition("=")
    assert [r.files[name] for r in self.results] == [text.encode()] * len(self.results)

  async def copy_out_within_s(self, seconds: str) -> None:
    """What is not the program's own time, so the copy and everything else that the pool did."""
    (result,) = self.results
    assert self.seconds - result.wall_s < PATIENCE * float(seconds)
    assert "**" not in result.left_out

  async def copy_out_bytes_below(self, number: str) -> None:
    assert all(sum(map(len, r.files.values())) < int(number) for r in self.results)

  async def copy_out_entries_below(self, number: str) -> None:
    assert all(len(r.files) < int(number) for r in self.results)


def _clock_difference() -> float:
  return time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)


def _sysv_ipc() -> list[int]:
  """Objects of each kind on the host."""
  return [len(Path(f"/proc/sysvipc/{k}").read_text().splitlines()) for k in ("msg", "sem", "shm")]
