"""`python -m ptjax.launch`."""

import sys

from ptjax.core.huge_pages import restart_with_huge_pages
from ptjax.launch.cli import main

if __name__ == "__main__":
  restart_with_huge_pages()
  sys.exit(main(sys.argv[1:]))
