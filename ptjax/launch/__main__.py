"""`python -m ptjax.launch`."""

import os
import sys

from ptjax.launch.cli import main

_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def restart_with_huge_pages() -> None:
  """Starts this program anew with huge pages for large arrays, unless GLIBC_TUNABLES is set.

  Weights are read once a token: with 4 KiB pages a CPU spends more time on address
  translation than on arithmetic (reading 512 MiB: 21 GB/s, and 52 GB/s with huge pages).
  glibc reads the setting at the start of a process only.
  """
  if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
    command = [sys.executable, "-m", "ptjax.launch", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ | _HUGE_PAGES)


if __name__ == "__main__":
  restart_with_huge_pages()
  sys.exit(main(sys.argv[1:]))
