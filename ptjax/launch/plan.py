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
  python -m ptjax.launch plan --config configs/grpo_llama31_8b.py --topology v5p:4x4x4 \\
      --json plan.json --html plan.html
  python -m ptjax.launch plan --config configs/grpo_llama31_8b.py --topology v5p:4x4x4 --search

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
  how = parser.add_mutually_exclusive_group()
  how.add_argument(
    "--search", action="store_true", help="rank meshes, micro-batches, remat and slots"
  )
  how.add_argument("--max-context", action="store_true", help="the longest context that fits")
  how.add_argument("--estimate", action="store_true", help="memory by formula, in a second")
  parser.add_argument(
    "--confirm",
    type=int,
    default=1,
    metavar="N",
    help="compile what --search ranks until N fit, and what --max-context finds; 0: by formula [1]",
  )
  parser.add_argument("--json", metavar="FILE", help="write the plan as JSON; - prints only that")
  parser.add_argument("--html", metavar="FILE", help="write the plan as a page")


_SHOWN = 10  # candidates of a search


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
  if args.search or args.max_context or args.estimate:
    if args.html:
      raise ValueError(
        "--html holds a compiled plan; leave out --search, --max-context, --estimate"
      )
    return _by_formula(args, experiment, shape, topology)
  plan = make_plan(experiment, shape, topology, _say)
  if args.json != "-":
    print_plan(plan)
  write_outputs(args, plan, to_json(plan))
  return 0 if plan.fits else 1


def _by_formula(args: argparse.Namespace, experiment: Any, shape: Any, topology: Any) -> int:
  """Memory, the ranking, the longest context: by formula, the best of it confirmed."""
  if args.confirm < 0:
    raise ValueError(f"--confirm {args.confirm} must be at least 0")
  what = _max_context if args.max_context else _estimate if args.estimate else _search
  lines, tree, ok = what(args, experiment, shape, topology)
  if args.json != "-":
    print("\n".join(lines))
  write_outputs(args, None, tree)
  return 0 if ok else 1


def _estimate(args, experiment, shape, topology) -> tuple[list[str], dict[str, Any], bool]:
  del args
  from ptjax.planning.estimate import estimate_on
  from ptjax.report.plan_table import estimate_lines

  hbm, live = topology.chip.hbm, estimate_on(experiment, shape, topology)
  fits = live.total <= hbm
  tree = {"fits": fits, "peak": live.total, "hbm": hbm, "parts": live.parts}
  return estimate_lines(live, hbm), tree, fits


def _search(args, experiment, shape, topology) -> tuple[list[str], dict[str, Any], bool]:
  from ptjax.planning.confirm import confirm
  from ptjax.planning.search import search
  from ptjax.report.plan_table import search_lines

  found = search(experiment, shape, topology)[:_SHOWN]
  plans = [plan for _, plan in confirm(found, shape, topology, args.confirm, _say)]
  rows: list[dict[str, Any]] = [
    {"changes": c.changes, "peak": c.live.total, "seconds": c.seconds} for c in found
  ]
  for row, plan in zip(rows, plans, strict=False):
    row["compiled"] = _compiled(plan)
  ok = any(plan.fits for plan in plans) if args.confirm else bool(found)
  return search_lines(found, plans, topology.chip.hbm), {"candidates": rows}, ok


def _max_context(args, experiment, shape, topology) -> tuple[list[str], dict[str, Any], bool]:
  from ptjax.planning.confirm import longest_context
  from ptjax.planning.search import max_context
  from ptjax.report.plan_table import context_lines

  estimated = max_context(experiment, shape, topology)
  tree: dict[str, Any] = {"max_context": estimated}
  longest = None
  if args.confirm:
    longest = longest_context(experiment, shape, topology, estimated, _say)
    plan = longest.plan
    tree["compiled"] = {
      "max_context": longest.length,
      "refused": longest.refused,
      "plan": None if plan is None else _compiled(plan),
    }
  ok = estimated > 0 if longest is None else longest.length > 0
  return context_lines(estimated, longest, topology), tree, ok


def _compiled(plan: Any) -> dict[str, Any]:
  return {"fits": plan.fits, "peak": None if plan.peak is None else plan.peak.total}


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
