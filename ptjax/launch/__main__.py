"""Entry point: `python -m ptjax.launch VERB ...`."""

import sys

from ptjax.launch.cli import main

if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
