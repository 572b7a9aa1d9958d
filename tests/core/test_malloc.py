"""Programs that restart themselves with glibc's malloc set for large arrays."""

import os
import platform
import subprocess
import sys

import pytest

from ptjax.core.malloc import TUNABLES

PROGRAM = """
import os, sys
from ptjax.core.malloc import restart_with_tuned_malloc
restart_with_tuned_malloc()
import numpy as np

def resident_mb():
  with open("/proc/self/statm") as f:
    return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

large = np.ones(64 << 20, np.uint8)
before = resident_mb()
del large
print(before - resident_mb(), *sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), sep="|")
"""

pytestmark = pytest.mark.skipif(
  platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc"
)


def run(**environment):
  """(MiB that the process gave back when it freed 64, its other words)."""
  kept = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
  command = [sys.executable, "-c", PROGRAM, "an argument"]
  done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)
  given_back, *words = done.stdout.strip().split("|")
  return int(given_back), words


def test_freed_arrays_stay_in_the_process():
  given_back, (argument, tunables) = run()
  assert given_back < 8
  assert argument == "an argument"
  assert len(tunables.split(":")) == len(TUNABLES)


def test_settings_of_the_user_are_kept():
  mine = "glibc.malloc.arena_max=3"
  given_back, (_, tunables) = run(GLIBC_TUNABLES=mine)
  assert given_back > 56
  assert tunables == mine
