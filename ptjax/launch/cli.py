"""The command line: one module a verb, errors of the user as one line, exit status by kind.

  0    done
  1    a fault of ptjax or of the machine (with its traceback), or `doctor` found a lack
  2    a mistake of the user: one line on stderr that says what to change
  75   preempted: a checkpoint is saved, run the same command again (EX_TEMPFAIL)
  130  interrupted from the keyboard

JAX is imported by a verb, when it runs: `--help` must be quick.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ptjax.core.config import one_line, parse_overrides
from ptjax.launch import (
  bestofn,
  distill,
  doctor,
  domains,
  eval,
  export,
  plan,
  prefer,
  reward,
  sft,
  sweep,
  train,
  view,
)

VERBS = (
  train,
  sft,
  prefer,
  reward,
  bestofn,
  distill,
  eval,
  export,
  plan,
  sweep,
  view,
  domains,
  doctor,
)

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

# Classes of what a user can get wrong. Inside a run, `train` also writes the traceback to
# `error.log` in the workdir, since there a ValueError may be our own fault.
USER_ERRORS = (
  ValueError,  # ConfigError, WorkdirInUseError and NoBackendError among them
  FileNotFoundError,
  FileExistsError,
  IsADirectoryError,
  NotADirectoryError,
  PermissionError,
)

EPILOG = """\
examples:
  python -m ptjax.launch train --config configs/demo_smollm2.py --workdir runs/demo
  python -m ptjax.launch train --config configs/demo_smollm2.py --workdir runs/kl \\
      --config.rl.kl_coef=0.01
  python -m ptjax.launch eval --workdir runs/demo
  python -m ptjax.launch view runs/demo
  python -m ptjax.launch doctor

exit status: 0 done; 1 a fault, or doctor found a lack; 2 a mistake in the command or the
configuration, told in one line; 75 preempted after saving a checkpoint, run it again.
"""


class Parser(argparse.ArgumentParser):
  """argparse whose errors are one line, like all others."""

  def error(self, message: str) -> NoReturn:
    self.exit(EXIT_USER_ERROR, f"ptjax: error: {one_line(message)}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
  parser = Parser(
    prog="python -m ptjax.launch",
    description="Post-trains language models with reinforcement learning, in JAX.",
    epilog=EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
  for verb in VERBS:
    sub = verbs.add_parser(
      verb.NAME,
      help=verb.HELP,
      description=verb.__doc__,
      epilog=verb.EPILOG,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
    )
    sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verb.add_arguments(sub)
    sub.set_defaults(run=verb.run, error=sub.error)
  return parser


def main(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> int:
  """Runs one verb; returns the exit status (argparse exits by itself for --help and misuse)."""
  # Taken out first, so that argparse stays strict about everything else.
  overrides = [arg for arg in argv if arg.startswith("--config.")]
  args = (parser or build_parser()).parse_args([arg for arg in argv if arg not in overrides])
  args.argv = tuple(argv)
  if overrides and not getattr(args, "takes_overrides", False):
    args.error(f"{args.verb} takes no {overrides[0]}")
  try:
    args.overrides = parse_overrides(overrides)
    return args.run(args)
  except KeyboardInterrupt:
    if args.debug:
      raise
    print("ptjax: interrupted", file=sys.stderr)
    return EXIT_INTERRUPTED
  except USER_ERRORS as error:
    if args.debug:
      raise
    lines = (str(error), *getattr(error, "__notes__", ()))
    print(f"ptjax: error: {one_line(' '.join(lines))}", file=sys.stderr)
    return EXIT_USER_ERROR
