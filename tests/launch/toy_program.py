"""A program whose one verb is `train` with a toy experiment: the launcher without a training."""

import dataclasses
import sys

from ptjax.core.config import config_hash
from ptjax.launch import cli, train, workdir
from ptjax.launch.arguments import load_config


@dataclasses.dataclass(frozen=True)
class OptimToy:
  lr: float = 1e-3


@dataclasses.dataclass(frozen=True)
class Toy:
  seed: int = 0
  batch: int = 8
  data_axis: int = 4
  optim: OptimToy = OptimToy()

  def __post_init__(self):
    if self.batch % self.data_axis:
      raise ValueError(f"batch {self.batch} not divisible by data axis {self.data_axis}; try 4")


def run(args) -> int:
  toy = load_config(args, Toy)
  with workdir.hold(args.workdir):
    print(config_hash(toy))
  return 0


if __name__ == "__main__":
  parser = cli.Parser(prog="toy", allow_abbrev=False)
  parser.add_argument("--debug", action="store_true")
  train.add_arguments(parser)
  parser.set_defaults(run=run, error=parser.error, verb="train")
  sys.exit(cli.main(sys.argv[1:], parser))
