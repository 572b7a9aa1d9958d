"""A plan as one self-contained HTML page; it holds no script and loads nothing."""

from ptjax.planning.plan import Plan
from ptjax.report import plan_table
from ptjax.report.html import POLICY
from ptjax.report.markup import Markup, el
from ptjax.report.plan_table import gib
from ptjax.report.style import CSS

BARS = (
  ".bar{display:flex;height:30px;border:1px solid var(--rule);border-radius:6px;overflow:hidden;"
  "margin:18px 0 6px}.bar span{display:block;height:100%}"
)
COLORS = ("var(--s0)", "var(--s1)", "var(--s2)", "var(--s3)")


def render(plan: Plan) -> str:
  """The whole page: verdict, the bar of a device's memory, and the tables of the terminal."""
  body = el(
    "main",
    el("h1", plan_table.headline(plan)),
    el("p", "fits" if plan.fits else "does not fit", cls="headline"),
    el("p", plan_table.verdict(plan)),
    *(el("p", line, cls="note") for line in plan_table.refusals(plan)),
    *(el("p", f"Try: {hint}") for hint in plan.hints),
    el("h2", "Memory of a device"),
    memory_bar(plan),
    *tables(plan),
    el("p", f"Planned in {plan.seconds:.0f} s by the TPU compiler, without a TPU.", cls="note"),
  )
  head = el(
    "head",
    Markup('<meta charset="utf-8">'),
    Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
    Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
    el("title", f"{plan.experiment}: plan for {plan.topology.name}"),
    el("style", Markup(CSS + BARS)),
  )
  return "<!doctype html>\n" + el("html", head, el("body", body), lang="en") + "\n"


def memory_bar(plan: Plan) -> Markup:
  """What fills a device at the peak, each part as wide as its share of the HBM."""
  peak = plan.peak
  if peak is None:
    return el("p", "No program compiled.", cls="note")
  whole = max(plan.hbm, peak.total)
  parts = sorted(peak.parts.items(), key=lambda part: -part[1])
  bars = [
    el(
      "span",
      title=f"{name}: {gib(nbytes)} GiB",
      style=f"width:{100 * nbytes / whole:.2f}%;background:{COLORS[i % len(COLORS)]}",
    )
    for i, (name, nbytes) in enumerate(parts)
  ]
  text = f"{gib(peak.total)} of {gib(plan.hbm)} GiB during {peak.name}"
  return el("figure", el("div", *bars, cls="bar"), el("figcaption", text))


def tables(plan: Plan) -> list[Markup]:
  found = []
  for make in (plan_table.programs, plan_table.contents, plan_table.collectives, plan_table.times):
    table = make(plan)
    if table.row_count:
      found += [el("h3", str(table.title)), _table(table)]
  return found


def _table(table) -> Markup:
  head = el("tr", *(el("th", str(column.header)) for column in table.columns))
  cells = zip(*(column._cells for column in table.columns), strict=True)
  rows = [el("tr", *(el("td", str(cell)) for cell in row)) for row in cells]
  return el("table", head, *rows)
