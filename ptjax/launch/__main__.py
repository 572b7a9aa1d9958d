"""`python -m ptjax.launch`."""

import sys

from ptjax.core.malloc import restart_with_tuned_malloc
from ptjax.launch.cli import main

if __name__ == "__main__":
  restart_with_tuned_malloc()
  sys.exit(main(sys.argv[1:]))
