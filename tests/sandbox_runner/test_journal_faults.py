"""The journal of what is to be removed, on a disk that is full or not there."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_runner import NoBackendError, Pool, PoolConfig

REPOSITORY = Path(__file__).parent.parent.parent


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
