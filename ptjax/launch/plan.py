"""Whether an experiment fits a TPU slice, and what a step costs there; needs no TPU and no weights.

The TPU compiler compiles the programs that `train` runs, ahead of time.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from ptjax.launch.arguments import add_config_arguments, load_config

NAME = "plan"
HELP = "whether a run fits a TPU slice, without the TPU"
EPILOG = """\
examples:
  python -m ptjax.launch plan --config configs/demo_smollm2.py --topology v5e:2x2 \\
      --config.model.activation_dtype=bfloat16 --config.pack.rows=4
  python -m ptjax.launch plan --config configs/grpo_8b.py --topology v5p:4x4x4 \\
      --json plan.json --html plan.html

needs the extra `plan`: pip install "ptjax[plan]"

exit status: 0 where it fits, 1 where it does not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add_config_arguments(parser)
  parser.add_argument(
    "--topology", required=True, metavar="NAME", help="such as v5p:4x4x4, v5e:16x16@2 (two slices)"
  )
  parser.add_argument(
    "--model", metavar="NAME", help="shape of another model: a preset, config.json or directory"
  )
  parser.add_argument("--json", metavar="FILE", help="write the plan as JSON; - prints only that")
  parser.add_argument("--html", metavar="FILE", help="write the plan as a page")


def root() -> type:
  """The dataclass that a configuration of this verb makes."""
  from ptjax.train.experiment import Experiment

  return Experiment


def run(args: argparse.Namespace) -> int:
  os.environ["JAX_PLATFORMS"] = "cpu"  # a plan must not take the TPU of a run
  experiment = load_config(args, root())
  if args.model:
    model = dataclasses.replace(experiment.model, source=args.model)
    experiment = dataclasses.replace(experiment, model=model)
  from ptjax.models.presets import shape_of
  from ptjax.planning.plan import make_plan, to_json
  from ptjax.planning.topology import parse_topology
  from ptjax.report.plan_table import print_plan

  topology, shape = parse_topology(args.topology), shape_of(experiment.model.source)
  plan = make_plan(experiment, shape, topology, _say)
  if args.json != "-":
    print_plan(plan)
  write_outputs(args, plan, to_json(plan))
  return 0 if plan.fits else 1


def write_outputs(args: argparse.Namespace, plan: Any, tree: dict[str, Any]) -> None:
  if args.json == "-":
    print(json.dumps(tree, indent=2))
  elif args.json:
    Path(args.json).write_text(json.dumps(tree, indent=2) + "\n")
  if args.html:
    from ptjax.report.plan_page import render

    Path(args.html).write_text(render(plan), encoding="utf-8")


def _say(program: Any) -> None:
  state = "does not fit" if program.error else "compiled"
  print(f"plan: {program.name} {state} in {program.seconds:.0f} s", file=sys.stderr, flush=True)
