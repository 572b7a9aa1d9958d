"""Control groups of version 2 on a kernel that has them: User-Mode Linux, on this machine's files.

Where this machine itself has version 2, every other test has shown the same already.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
KERNEL = shutil.which("linux.uml")
# A page that this kernel maps for the first time costs it a hundred times what it should.
SLOWNESS = 10
CASES = "memory-touch or fork-bomb or zombies or exit-codes or processes or pids"
# The first process of that kernel. The files are this machine's, but what it writes goes elsewhere.
INIT = """#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
export HOSTILE_SLOWNESS={slowness}
mount -t proc proc /proc
mount -t sysfs sys /sys
for place in /tmp /run /dev/shm; do mount -t tmpfs tmpfs $place; done
mount -t cgroup2 groups /sys/fs/cgroup
mkdir /sys/fs/cgroup/first
echo $$ >/sys/fs/cgroup/first/cgroup.procs
echo +memory +pids +cpu >/sys/fs/cgroup/cgroup.subtree_control
cd {repository}
{python} -B -m sandbox_runner doctor
{python} -B -m pytest -q -p no:cacheprovider -k 'bwrap and ({cases})' \\
  tests/sandbox_runner/test_hostile.py tests/sandbox_runner/test_limit_outcomes.py \\
  tests/sandbox_runner/test_accounting.py
echo "status: $?"
echo o >/proc/sysrq-trigger
sleep 60
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the files of another user")
def test_hostile_cases_that_groups_decide(tmp_path: Path):
  if not KERNEL and not os.environ.get("PTJAX_REQUIRE_DOCKER"):
    pytest.skip("no User-Mode Linux; apt-get install -y user-mode-linux")
  assert KERNEL, "no User-Mode Linux; apt-get install -y user-mode-linux"
  init = tmp_path / "init"
  names = {"repository": REPOSITORY, "python": sys.executable, "slowness": SLOWNESS}
  init.write_text(INIT.format(**names, cases=CASES))
  init.chmod(0o755)
  command = [KERNEL, "mem=2G", "rootfstype=hostfs", "rootflags=/", "rw", f"init={init}"]
  done = subprocess.run(
    [*command, "con0=null,fd:1", "con=null", "quiet"],
    env={"TMPDIR": "/dev/shm", "HOME": str(tmp_path)},  # the file that is its memory, its sockets
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
    timeout=400,
  )
  said = done.stdout.replace("\r", "")
  assert "control groups v2" in said, said[-3000:]
  assert "status: 0" in said.splitlines(), said[-6000:]
