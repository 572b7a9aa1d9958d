"""Executions per second and latencies of every sandbox backend that works here. Prints one table.

Compared, in the same run, with what needs no pool: `bwrap ... python3 -c` for each task, and
`docker run --rm` for each task. Every row runs the same program, `print(1 + 1)`.

    python -m benchmarks.sandbox [--seconds 3] [--size 2]
"""

import argparse
import asyncio
import os
import subprocess

from sandbox_runner import Pool, PoolConfig, Request, detect_backends
from sandbox_runner.backends.bwrap import find_python
from sandbox_runner.bench import HEADER, measure, row
from sandbox_runner.images import ensure_host_image

PROGRAM = "print(1 + 1)"
SNIPPET = Request(("python3", "-c", PROGRAM))
PATHS = {"python, fork": True, "python, exec": False}


async def command(*argv: str) -> None:
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


def plain_docker(runtime: str) -> list[str]:
  image = ensure_host_image("docker")
  flags = ["--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--log-driver", "none"]
  return ["docker", "run", *flags, "--runtime", runtime, image, "python3", "-c", PROGRAM]


async def pool_rows(config: PoolConfig, seconds: float) -> list[str]:
  rows = []
  for path, fork in PATHS.items():
    chosen = PoolConfig(config.backend, config.size, runtime=config.runtime, fork_python=fork)
    async with Pool(chosen) as pool:

      async def run(pool: Pool = pool) -> None:
        result = await pool.run(SNIPPET)
        if result.stdout != b"2\n":
          raise RuntimeError(f"{result}")

      rows.append(row(f"{pool.backend.name}: {path}", *await measure(run, seconds, config.size)))
  return rows


async def main(arguments: argparse.Namespace) -> None:
  seconds, size = arguments.seconds, arguments.size
  load = os.getloadavg()[0]
  print(f"{os.cpu_count()} cores, load {load:.1f} before the run, {size} at a time for the rate")
  print(HEADER)
  available = {s.name: s for s in detect_backends() if s.available}
  if "bwrap" in available:
    for line in await pool_rows(PoolConfig("bwrap", size), seconds):
      print(line, flush=True)
    plain = plain_bwrap()
    print(row("bwrap for each task", *await measure(lambda: command(*plain), seconds, size)))
  for runtime in ("runc", "runsc"):
    if "docker" in available and runtime in available["docker"].detail:
      for line in await pool_rows(PoolConfig("docker", size, runtime=runtime), seconds):
        print(line, flush=True)
      plain = plain_docker(runtime)
      numbers = await measure(lambda plain=plain: command(*plain), seconds, size)
      print(row(f"docker run --rm, {runtime}, each task", *numbers), flush=True)


if __name__ == "__main__":
  options = argparse.ArgumentParser(description=__doc__)
  options.add_argument("--seconds", type=float, default=3.0, help="for each number [3]")
  options.add_argument("--size", type=int, default=2, help="sandboxes and runs at a time [2]")
  asyncio.run(main(options.parse_args()))
