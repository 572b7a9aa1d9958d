"""How fast and how fair a backend runs a snippet, and whether many runs leave anything."""

import asyncio
import itertools
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox_runner.cgroups import PREFIX, find_parents
from sandbox_runner.journal import LABEL
from sandbox_runner.pool import Pool, PoolConfig
from sandbox_runner.sandbox import Sandbox
from sandbox_runner.types import Request, Result

SETTLE_S = 10.0  # for the kernel and the daemon to take away what was closed
ENGINE_MOUNTS = ("/var/lib/docker/", "/run/docker/")  # of its containers, which are counted as such
LEAST_LEASES = 5
SETTLED_RUNS = 200  # after which the memory of the runner should no longer grow


async def measure(
  run: Callable[[], Awaitable[None]], seconds: float, size: int
) -> tuple[float, list[float]]:
  """(runs per second with `size` at a time, sorted seconds of each run with one at a time)."""
  latencies = []
  end = time.perf_counter() + seconds
  while time.perf_counter() < end or len(latencies) < 3:
    started = time.perf_counter()
    await run()
    latencies.append(time.perf_counter() - started)
  rate, _ = await repeat(run, seconds, size)
  return rate, sorted(latencies)


async def repeat(
  run: Callable[[], Awaitable[None]], seconds: float, size: int
) -> tuple[float, int]:
  """(runs per second, runs) with `size` at a time."""
  done = itertools.count()
  started = time.perf_counter()

  async def worker() -> None:
    while time.perf_counter() - started < seconds:
      await run()
      next(done)

  await asyncio.gather(*(worker() for _ in range(size)))
  count = next(done)
  return count / (time.perf_counter() - started), count


def row(name: str, rate: float, latencies: list[float]) -> str:
  p50 = statistics.median(latencies) * 1e3
  p99 = latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))] * 1e3
  return f"{name:36}{rate:12.1f}{p50:12.2f}{p99:12.2f}{len(latencies):8d}"


EMPTY_PROCESS = """
import os, time
for _ in range(50):
  started = time.perf_counter()
  if not (pid := os.fork()):
    os._exit(0)
  os.waitpid(pid, 0)
  print(time.perf_counter() - started)
"""

HEADER = f"{'':36}{'runs/s':>12}{'p50 ms':>12}{'p99 ms':>12}{'n':>8}"


class SnippetError(ValueError):
  """The snippet did not end well: there is nothing to be measured."""


def snippet_request(snippet: str) -> Request:
  return Request(("python3", "-c", snippet), tenant="bench")


def check(result: Result) -> Result:
  """Raises SnippetError if it did not end well."""
  if result.outcome != "exit" or result.exit_code:
    why = result.detail or result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    raise SnippetError(f"the snippet ended by {result.outcome} {result.exit_code}: {why}")
  return result


def runner_of(pool: Pool, snippet: str) -> Callable[[], Awaitable[None]]:
  request = snippet_request(snippet)

  async def run() -> None:
    check(await pool.run(request))

  return run


def resident_kb() -> int:
  return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10


@dataclass(frozen=True)
class Objects:
  """What a runner can leave on its host: names of each kind."""

  processes: frozenset[str]
  cgroups: frozenset[str]
  containers: frozenset[str]
  mounts: frozenset[str]

  def minus(self, other: "Objects") -> dict[str, list[str]]:
    kinds = ("processes", "cgroups", "containers", "mounts")
    return {kind: sorted(getattr(self, kind) - getattr(other, kind)) for kind in kinds}


def host_objects(runner: str = "") -> Objects:
  """What this process and this runner have; without a name, what all runners have."""
  parents, _ = find_parents()
  directories = set(parents.directories.values()) if parents else set()
  groups = {str(path) for d in directories for path in d.glob(f"{PREFIX}{runner}*")}
  points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
  mounts = {p for p in points if not p.startswith(ENGINE_MOUNTS)}
  return Objects(
    frozenset(_processes(runner)),
    frozenset(groups),
    frozenset(_containers(runner)),
    frozenset(mounts),
  )


def _processes(runner: str) -> list[str]:
  children: dict[int, list[str]] = {}
  found = []
  for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
      fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
      command = Path(f"/proc/{entry}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
      continue
    children.setdefault(int(fields[1]), []).append(entry)
    if runner and f"{runner}-".encode() in command:
      found.append(entry)
  layer = [os.getpid()]
  while layer:
    below = [entry for parent in layer for entry in children.get(parent, ())]
    found += below
    layer = [int(entry) for entry in below]
  return found


def _containers(runner: str) -> list[str]:
  """None where no daemon answers."""
  docker = shutil.which("docker")
  if docker is None:
    return []
  command = [
    docker,
    "ps",
    "-aq",
    "--no-trunc",
    "--filter",
    f"label={LABEL}{'=' * bool(runner)}{runner}",
  ]
  try:
    return subprocess.run(
      command, capture_output=True, text=True, timeout=20, check=False
    ).stdout.split()
  except subprocess.TimeoutExpired:
    return []


async def left_since(before: Objects, runner: str) -> dict[str, list[str]]:
  """What is there now and was not before, after it had its time to go."""
  deadline = time.monotonic() + SETTLE_S
  while any((left := host_objects(runner).minus(before)).values()):
    if time.monotonic() > deadline:
      break
    await asyncio.sleep(0.1)
  return left


async def bench(config: PoolConfig, snippet: str, seconds: float) -> str:
  """One row of the table of executions and latencies."""
  async with Pool(config) as pool:
    return row(pool.backend.name, *await measure(runner_of(pool, snippet), seconds, config.size))


async def acquire(pool: Pool, seconds: float) -> list[float]:
  """Sorted seconds until a lease on a warm sandbox is there; each is thrown away afterwards."""
  took = []
  end = time.perf_counter() + seconds
  while time.perf_counter() < end or len(took) < LEAST_LEASES:
    await pool.settle()  # all places are warm again
    started = time.perf_counter()
    async with pool.lease(tenant="bench"):
      took.append(time.perf_counter() - started)
  return sorted(took)


async def soft_reset(pool: Pool, snippet: str, seconds: float) -> list[float]:
  """Sorted seconds from a result to a sandbox that is empty and ready for the next task."""
  took = []
  request = snippet_request(snippet)
  async with pool.lease(tenant="bench") as session:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
      check(await session.sandbox.run(request, pool.config.fork_python))
      started = time.perf_counter()
      await session.sandbox.read_back((), request.limits, tree=False)  # answered when it is ready
      took.append(time.perf_counter() - started)
  return sorted(took)


async def empty_process(pool: Pool) -> float:
  """Median seconds, inside a sandbox, from the fork of a process that ends at once to its wait.

  Each run has such a process of its own: no reset, and hardly a run, can take less.
  """
  result = check(await pool.run(snippet_request(EMPTY_PROCESS)))
  return statistics.median(map(float, result.stdout.split()))


async def worst_wait(pool: Pool, snippet: str, tasks: int, tenants: int) -> float:
  """Longest mean wait of a tenant, over the median of all: tasks of each come all at once."""
  waits: dict[str, list[float]] = {f"tenant {i}": [] for i in range(tenants)}
  submitted = time.perf_counter()

  async def one(tenant: str) -> None:
    result = check(await pool.run(replace(snippet_request(snippet), tenant=tenant)))
    waits[tenant].append(time.perf_counter() - submitted - result.wall_s)

  await asyncio.gather(*(one(tenant) for tenant in waits for _ in range(tasks // tenants)))
  means = [statistics.mean(of_one) for of_one in waits.values()]
  return max(means) / statistics.median(means)


async def open_many(pool: Pool, snippet: str, share: float) -> tuple[int, float]:
  """(sandboxes open at once, MiB of each) when they have taken this share of the free memory.

  Each has run the snippet. They are closed before this returns.
  """
  free = start = available_mb()
  opened: list[Sandbox] = []
  try:
    while free > start * (1 - share):
      name = f"{pool.runner}-open{len(opened)}"
      opened.append(await Sandbox.open(name, pool.backend, pool.config.limits))
      check(await opened[-1].run(snippet_request(snippet), pool.config.fork_python))
      free = available_mb()
    return len(opened), (start - free) / len(opened)
  finally:
    for sandbox in opened:
      await sandbox.close()


def available_mb() -> float:
  """Of this machine's memory, as the kernel estimates it."""
  found = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
  return int(found.split()[0]) / 1024


async def soak(config: PoolConfig, snippet: str, seconds: float) -> tuple[list[str], bool]:
  """(lines of a report, whether nothing is left) of a pool that runs a snippet for so long."""
  before = host_objects()
  async with Pool(config) as pool:
    run = runner_of(pool, snippet)
    for _ in range(SETTLED_RUNS):
      await run()
    start_kb = resident_kb()
    rate, count = await repeat(run, seconds, config.size)
    end_kb = resident_kb()
    name, runner = pool.backend.name, pool.runner
  left = await left_since(before, runner)
  total = sum(map(len, left.values()))
  report = [
    f"{name}: {count} runs in {seconds:g} s, {rate:.1f} a second, {config.size} at a time",
    f"resident memory of the runner: {start_kb} KiB after {SETTLED_RUNS} runs, "
    f"{end_kb} KiB at the end",
    f"left behind: {', '.join(f'{len(names)} {kind}' for kind, names in left.items())}",
  ]
  report += [f"  {kind}: {name}" for kind, names in left.items() for name in names]
  return report, total == 0
