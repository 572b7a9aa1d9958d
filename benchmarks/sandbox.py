"""Every sandbox backend that works here, against what needs no pool, in one run. Prints tables.

    python -m benchmarks.sandbox [--seconds 3] [--size 2] [--backend bwrap] [--open 0.1]
    python -m benchmarks.sandbox --soak 600

Every row runs the same program, `print(1 + 1)`. Beside the pools stand `bwrap`, `docker run --rm`
and `docker exec` for each task. `x docker run` is the p50 of `docker run --rm` under the row's
runtime (runc's for bwrap) over the row's own.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from sandbox_runner import Pool, PoolConfig, bench, detect_backends
from sandbox_runner.backends.bwrap import find_python
from sandbox_runner.images import ensure_host_image

PROGRAM = "print(1 + 1)"
PATHS = {"python, fork": True, "python, exec": False}
TASKS, TENANTS = 1000, 100
SHARE_BY_DOCKER = 10  # a tenth of both: each change of the tenant costs a container, half a second
HARDENED = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--log-driver", "none"]


@dataclass(frozen=True)
class Measured:
  """A row: its name, the runtime of the `docker run` that it is compared with, figures."""

  name: str
  against: str
  rate: float
  latencies: list[float]


async def command(*argv: str) -> None:
  """Raises RuntimeError unless it prints what the program prints."""
  process = await asyncio.create_subprocess_exec(
    *argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
  )
  out, _ = await process.communicate()
  if out != b"2\n":
    raise RuntimeError(f"{argv[0]} gave {out!r}")


def plain_bwrap() -> list[str]:
  """bwrap as one would call it for each task, with nothing of it kept between two."""
  options = [
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--cap-drop",
    "ALL",
  ]
  options += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
  for name in ("bin", "lib", "lib64"):
    if os.path.islink(f"/{name}"):
      options += ["--symlink", f"usr/{name}", f"/{name}"]
  return ["bwrap", *options, "--", find_python()[0], "-c", PROGRAM]


def docker_run(runtime: str) -> list[str]:
  return ["docker", "run", *HARDENED, "--runtime", runtime]


@contextlib.asynccontextmanager
async def sleeping_container(runtime: str, image: str) -> AsyncGenerator[str]:
  """The name of one that does nothing, for `docker exec`."""
  name = f"benchmark-{os.getpid()}-{runtime}"
  await docker(*docker_run(runtime)[1:], "-d", "--init", "--name", name, image, "sleep", "86400")
  try:
    yield name
  finally:
    await docker("rm", "-f", name)


async def docker(*arguments: str) -> None:
  process = await asyncio.create_subprocess_exec("docker", *arguments, stdout=subprocess.DEVNULL)
  if await process.wait():
    raise RuntimeError(f"docker {arguments[0]} failed")


async def measured(name: str, against: str, argv: list[str], options) -> Measured:
  numbers = await bench.measure(lambda: command(*argv), options.seconds, options.size)
  return Measured(name, against, *numbers)


async def pool_rows(config: PoolConfig, options) -> list[Measured]:
  rows = []
  for path, fork in PATHS.items():
    chosen = PoolConfig(config.backend, config.size, runtime=config.runtime, fork_python=fork)
    async with Pool(chosen) as pool:
      run = bench.runner_of(pool, PROGRAM)
      against = config.runtime if config.backend == "docker" else "runc"
      numbers = await bench.measure(run, options.seconds, options.size)
      rows.append(Measured(f"{pool.backend.name}: {path}", against, *numbers))
  return rows


async def docker_rows(runtime: str, options) -> list[Measured]:
  image = ensure_host_image("docker")
  python = ["python3", "-c", PROGRAM]
  argv = [*docker_run(runtime), "--rm", image, *python]
  rows = [await measured(f"docker run --rm, {runtime}, each task", runtime, argv, options)]
  async with sleeping_container(runtime, image) as name:
    argv = ["docker", "exec", name, *python]
    rows.append(await measured(f"docker exec, {runtime}, each task", runtime, argv, options))
  return rows


async def pool_line(config: PoolConfig, options) -> str:
  """What a pool does besides running: lease, reset, share."""
  async with Pool(config) as pool:
    empty = await bench.empty_process(pool)
    resets = await bench.soft_reset(pool, PROGRAM, options.seconds)
    leases = await bench.acquire(pool, options.seconds)
    share = SHARE_BY_DOCKER if config.backend == "docker" else 1
    worst = await bench.worst_wait(pool, PROGRAM, TASKS // share, TENANTS // share)
    line = f"{pool.backend.name:20}{statistics.median(leases) * 1e3:12.2f}"
    line += f"{statistics.median(resets) * 1e3:12.2f}{empty * 1e3:12.2f}{worst:12.2f}"
    if options.open:
      count, each_mb = await bench.open_many(pool, PROGRAM, options.open)
      line += f"{count:12d}{each_mb:12.1f}"
  return line


def shown(r: Measured, docker_run_s: dict[str, float]) -> str:
  """A row, with how many times faster it is than `docker run` of its runtime."""
  base, p50 = docker_run_s.get(r.against), statistics.median(r.latencies)
  return bench.row(r.name, r.rate, r.latencies) + (f"{base / p50:14.1f}" if base else "")


def chosen_pools(options) -> list[PoolConfig]:
  """One of each backend that works here and is asked for."""
  available = {s.name: s.detail for s in detect_backends() if s.available}
  pools = [PoolConfig("bwrap", options.size)] if "bwrap" in available else []
  for runtime in ("runc", "runsc"):
    if runtime in available.get("docker", ""):
      pools.append(PoolConfig("docker", options.size, runtime=runtime))
  return [p for p in pools if options.backend in (None, backend_name(p))]


def backend_name(config: PoolConfig) -> str:
  return config.runtime if config.backend == "docker" else "bwrap"


async def compare(options) -> int:
  load = os.getloadavg()[0]
  print(f"{os.cpu_count()} cores, load {load:.1f} before the run, {options.size} at a time")
  pools, docker_run_s = chosen_pools(options), {}
  print(f"{bench.HEADER}{'x docker run':>14}", flush=True)
  for config in pools:  # first what the others are compared with
    if config.backend == "docker":
      plain = await docker_rows(config.runtime, options)
      docker_run_s[config.runtime] = statistics.median(plain[0].latencies)
      for r in plain:
        print(shown(r, docker_run_s), flush=True)
  for config in pools:
    rows = await pool_rows(config, options)
    if config.backend == "bwrap":
      rows.append(await measured("bwrap, each task", "runc", plain_bwrap(), options))
    for r in rows:
      print(shown(r, docker_run_s), flush=True)
  header = f"\n{'':20}{'lease ms':>12}{'reset ms':>12}{'fork ms':>12}{'worst wait':>12}"
  print(header + (f"{'open':>12}{'MiB each':>12}" if options.open else ""))
  for config in pools:
    print(await pool_line(config, options), flush=True)
  return 0


async def soak(options) -> int:
  """1 if anything is left behind."""
  all_clean = True
  for config in chosen_pools(options):
    report, clean = await bench.soak(config, PROGRAM, options.soak)
    print("\n".join(report), flush=True)
    all_clean = all_clean and clean
  return 0 if all_clean else 1


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seconds", type=float, default=3.0, help="for each number [3]")
  parser.add_argument("--size", type=int, default=2, help="sandboxes and runs at a time [2]")
  parser.add_argument("--backend", choices=("bwrap", "runc", "runsc"), help="only this one")
  parser.add_argument(
    "--open", type=float, default=0.0, help="how many fit in this share of memory"
  )
  parser.add_argument("--soak", type=float, help="run for so many seconds, look for what is left")
  options = parser.parse_args()
  if not 0 <= options.open < 1:
    parser.error(f"--open {options.open:g} must be a share of memory below 1")
  return asyncio.run(soak(options) if options.soak else compare(options))


if __name__ == "__main__":
  sys.exit(main())
