"""A plan on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ptjax.planning.compiler import Compiled
from ptjax.planning.confirm import Longest
from ptjax.planning.memory import Live
from ptjax.planning.plan import Plan
from ptjax.planning.search import Candidate
from ptjax.planning.topology import GIB, Topology


def print_plan(plan: Plan, console: Console | None = None) -> None:
  """Verdict, memory by program, what fills it, collectives, roofline."""
  out = console or Console()
  out.print(Text(headline(plan), style="bold"))
  for table in (programs(plan), contents(plan), collectives(plan), times(plan)):
    if table.row_count:
      out.print(table)
  out.print(Text(verdict(plan), style="bold green" if plan.fits else "bold red"))
  for line in refusals(plan):
    out.print(Text(line))
  for hint in plan.hints:
    out.print(Text(f"  try: {hint}"))
  out.print(Text(f"planned in {plan.seconds:.0f} s", style="dim"))


def gib(nbytes: float) -> str:
  return f"{nbytes / GIB:.3f}" if nbytes < GIB else f"{nbytes / GIB:.2f}"


def seconds(value: float) -> str:
  return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def headline(plan: Plan) -> str:
  mesh = ", ".join(f"{axis} {n}" for axis, n in plan.mesh.items() if n > 1) or "one device"
  return (
    f"{plan.experiment}: {plan.model}, {plan.parameters / 1e9:.3g}B parameters, on "
    f"{plan.topology.name} ({plan.topology.num_devices} devices; {mesh})"
  )


def verdict(plan: Plan) -> str:
  if plan.fits and plan.peak is not None:
    return (
      f"fits: at most {gib(plan.peak.total)} of {gib(plan.hbm)} GiB a device, during "
      f"{plan.peak.name}; a step takes at least {seconds(plan.step_seconds)}"
    )
  if plan.peak is not None and plan.peak.total > plan.hbm:
    return (
      f"does not fit: {gib(plan.peak.total)} of {gib(plan.hbm)} GiB a device are needed during "
      f"{plan.peak.name}"
    )
  return "does not fit: the compiler refuses " + ", ".join(
    p.name for p in plan.programs if p.error is not None
  )


def refusals(plan: Plan) -> list[str]:
  """Of each program that the compiler refused, or else of the fullest one, the largest arrays."""
  lines = []
  for program in plan.programs:
    if program.error is not None:
      lines.append(f"{program.name}: {program.error.text}")
      lines += largest(program.error.buffers)
  if not plan.fits and not lines and plan.peak is not None:
    fullest = next(p for p in plan.programs if plan.peak and p.name == plan.peak.name)
    lines.append(f"largest arrays of {fullest.name} beside its arguments:")
    lines += largest(fullest.buffers)
  if plan.largest:
    lines.append("largest on a device, by formula:")
    lines += [f"  {gib(nbytes)} GiB  {name}" for name, nbytes in plan.largest]
  return lines


def largest(buffers) -> list[str]:
  return [f"  {gib(b.nbytes)} GiB  {b.shape}  {b.source}" for b in buffers[:3]]


def programs(plan: Plan) -> Table:
  table = Table("program", title="memory of a device, GiB", title_justify="left")
  for name in ("arguments", "temporaries", "peak", "all live", "of HBM", "compiled in"):
    table.add_column(name, justify="right")
  live = {found.name: found.total for found in plan.live}
  for p in plan.programs:
    table.add_row(p.name, *_memory(p, live.get(p.name), plan.hbm), f"{p.seconds:.0f} s")
  return table


def _memory(p: Compiled, total: int | None, hbm: float) -> list[str]:
  if total is None:
    return ["-", "-", "out of memory", "-", "-"]
  return [gib(p.arguments), gib(p.temporaries), gib(p.peak), gib(total), f"{total / hbm:.0%}"]


def contents(plan: Plan) -> Table:
  peak = plan.peak
  title = "" if peak is None else f"what fills it during {peak.name}, GiB"
  table = Table("what", title=title, title_justify="left")
  for name in ("GiB", "share"):
    table.add_column(name, justify="right")
  if peak is None:
    return table
  for name, nbytes in sorted(peak.parts.items(), key=lambda x: -x[1]):
    if nbytes >= 2**20 or nbytes > peak.total / 100:
      table.add_row(name, gib(nbytes), f"{nbytes / peak.total:.0%}")
  return table


def collectives(plan: Plan) -> Table:
  table = Table("program", "kind", "axes", "network", title="collectives of one execution")
  for name in ("executions", "MiB sent a device"):
    table.add_column(name, justify="right")
  for p in plan.programs:
    for flow in p.traffic:
      network = "DCN" if flow.dcn else "ICI"
      mib = f"{flow.sent / 2**20:,.2f}"
      table.add_row(p.name, flow.kind, " ".join(flow.axes), network, str(flow.count), mib)
  return table


def times(plan: Plan) -> Table:
  table = Table("program", title="least time by bound (roofline)", title_justify="left")
  for name in ("TFLOP", "compute", "HBM", "ICI", "DCN", "bound", "in a step", "least"):
    table.add_column(name, justify="right")
  for r in plan.roofline:
    bounds = [seconds(r.times[name]) for name in ("compute", "hbm", "ici", "dcn")]
    work = f"{r.flops / 1e12:,.3g}"
    table.add_row(r.name, work, *bounds, r.bound, f"{r.count} x", seconds(r.seconds))
  return table


def context_lines(estimated: int, longest: Longest | None, topology: Topology) -> list[str]:
  """The longest context by estimate, and as compiled where that was asked for."""
  lines = [
    f"the longest context that fits {topology.name}: {estimated:,} tokens, by estimate"
    if estimated
    else f"no context fits {topology.name}, by estimate"
  ]
  if longest is not None and longest.plan is not None:
    refused = "" if longest.refused is None else f"; {longest.refused:,} do not"
    lines.append(f"compiled: {longest.length:,} tokens fit, {peak_word(longest.plan)}{refused}")
  elif longest is not None and estimated:
    lines.append("compiled: none of those that were tried fits")
  return lines


def estimate_lines(live: Live, hbm: float) -> list[str]:
  parts = sorted(live.parts.items(), key=lambda part: -part[1])
  word = "fits" if live.total <= hbm else "does not fit"
  return [
    *(f"{gib(nbytes):>8} GiB  {name}" for name, nbytes in parts),
    f"{word} by estimate: {gib(live.total)} of {gib(hbm)} GiB a device, during {live.name}",
  ]


def search_lines(found: Sequence[Candidate], plans: Sequence[Plan], hbm: float) -> list[str]:
  """The candidates of a search, best first; times are by formula, and so is memory but for those
  first ones that have a compiled plan."""
  if not found:
    return ["nothing that was tried fits, by estimate; use a larger slice"]
  compiled = [f"compiled {peak_word(plan)}" for plan in plans] + [""] * len(found)
  return [
    f"{i:2}  {seconds(c.seconds):>10}  {gib(c.live.total):>7} of {gib(hbm)} GiB  {word:24}"
    + " ".join(f"--config.{key}={value}" for key, value in c.changes.items())
    for i, (c, word) in enumerate(zip(found, compiled, strict=False), start=1)
  ]


def peak_word(plan: Plan) -> str:
  """What the compiler says of the fullest program."""
  if plan.fits and plan.peak is not None:
    return f"{gib(plan.peak.total)}, fits"
  return "does not fit"
