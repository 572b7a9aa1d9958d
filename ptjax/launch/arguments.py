"""The arguments that name a configuration, shared by the verbs that run one."""

import argparse
from typing import TypeVar

from ptjax.core.config import ConfigError, load_config_file, load_gin

T = TypeVar("T")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("configuration, from a Python file or from gin")
  group.add_argument(
    "--config",
    metavar="FILE[:ARG]",
    help="Python file whose get_config() returns a ConfigDict; ARG is passed to get_config(ARG)",
  )
  group.add_argument(
    "--gin_file", metavar="FILE", action="append", default=[], help="gin file; may be repeated"
  )
  group.add_argument(
    "--gin_bindings",
    metavar="BINDING",
    action="append",
    default=[],
    help='such as "RLConfig.kl_coef = 0.01"; may be repeated, applied after the files',
  )
  add_overrides(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
  """Of the verbs that train: a configuration, and the directory of the run."""
  add_config_arguments(parser)
  parser.add_argument("--workdir", required=True, metavar="DIR", help="directory of this run")


def add_overrides(parser: argparse.ArgumentParser) -> None:
  """Says that the verb takes `--config.KEY=VALUE`, which `cli.main` reads before argparse."""
  parser.set_defaults(takes_overrides=True)
  parser.add_argument_group(
    "overrides",
    "--config.KEY=VALUE replaces one value, such as --config.rl.kl_coef=0.01 or\n"
    "--config.domains.0.weight=2. The type of the field decides how VALUE reads:\n"
    "true, false, none, a number, text, or 1,2,3 for a tuple. The last one wins.",
  )


def load_config(args: argparse.Namespace, cls: type[T]) -> T:
  """Builds the root config from --config or --gin_file/--gin_bindings, then the overrides.

  Raises:
    ConfigError: neither or both front ends given, or a mistake in what they hold.
  """
  from_gin = bool(args.gin_file or args.gin_bindings)
  if from_gin == bool(args.config):
    raise ConfigError("give either --config FILE or --gin_file/--gin_bindings, one of the two")
  if from_gin:
    return load_gin(cls, args.gin_file, args.gin_bindings, args.overrides)
  return load_config_file(args.config, cls, args.overrides)
