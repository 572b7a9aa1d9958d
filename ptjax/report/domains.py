"""The sections about domains: what the run decided about them, what each cost and gained.

The table sorts without a script: each row knows its place under every heading, and the heading
that is chosen decides by a rule of the style sheet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptjax.report.markup import Markup, el, join
from ptjax.report.returns import HOUR, PETA, Gain, Return, Spent, by_phase, returns
from ptjax.report.run import PassRate, Run

WORST = 5
"""Domains that are named as the worst."""

KINDS = {
  "raise": "weight raised",
  "pause": "paused",
  "roll_back": "rolled back",
  "quarantine": "quarantined",
  "stop": "run stopped",
  "added": "added",
  "removed": "removed",
  "reversioned": "new version",
  "reweighted": "new weight",
}

Key = Callable[[Return], float | None]


def decisions(run: Run) -> Markup:
  """What the run did about its domains, with the evidence; floors are in the table below it."""
  acted = [record for record in run.decisions if record["kind"] in KINDS]
  if not acted:
    return Markup()
  header = ("after step", "what", "domain", "evidence")
  rows = (
    el("tr", *(el("td", c) for c in (str(r["step"]), what(r), r["domain"], evidence(r))))
    for r in acted
  )
  return join(
    el("h2", "Decisions about domains"),
    el("table", el("tr", *(el("th", title) for title in header)), *rows, cls="config"),
  )


def what(record: Mapping[str, Any]) -> str:
  """The action, and on whom where that is another domain."""
  target = record["evidence"].get("target")
  kind = KINDS[record["kind"]]
  if target and target != record["domain"]:
    return f"{target} {kind}"
  to_step = record["evidence"].get("to_step")
  return kind if to_step is None else f"{kind} to step {to_step}"


def evidence(record: Mapping[str, Any]) -> str:
  """In words where it is the guard's, else name by name."""
  found = record["evidence"]
  if "history" in found:
    rates = ", ".join(f"{passed}/{total}" for passed, total in found["history"][-5:])
    return (
      f"held-out {rates}: at most {found['high']:.3f}, its floor is {found['floor']:.3f}; "
      f"log evidence {found['log_evidence']:.1f} of {found['limit']:.1f}"
    )
  return ", ".join(f"{name} {shown(value)}" for name, value in found.items())


def shown(value: Any) -> str:
  return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(run: Run) -> Markup:
  """Domains with their pass rates, what was spent on them and what it gave; sorted at will."""
  rows = returns(run)
  if not rows:
    return Markup()
  before, after = run.pass_rates("before"), run.pass_rates("after")
  floors = {r["domain"]: r["evidence"]["floor"] for r in run.decisions if r["kind"] == "floor"}
  prices = price(run)
  columns = _columns(before, after, floors, prices)
  total, domains = (rows[0], rows[1:]) if len(rows) > 1 else (None, rows)
  orders = [_order(domains, key) for _, _, key in columns]
  style = "".join(
    f"#by{i}:checked~.rows>.row:not(.head){{order:var(--k{i})}}"
    f"#by{i}:checked~.rows>.head>label[for=by{i}]{{color:var(--ink);font-weight:600}}"
    for i in range(len(columns))
  )
  boxes = [_radio(i) for i in range(len(columns))]
  head = el(
    "div", *(Markup(f'<label for="by{i}">{title}</label>') for i, (title, _, _) in
             enumerate(columns)), cls="row head",
  )  # fmt: skip
  lines = [_line(domains[i], columns, [order[i] for order in orders]) for i in range(len(domains))]
  if total is not None:
    lines.insert(0, _line(total, columns, [-1] * len(columns), "row total"))
  grid = f".rows{{--columns:minmax(170px,1.6fr) repeat({len(columns) - 1},minmax(82px,1fr))}}"
  return join(
    el("h2", "Domains"),
    worst(run, after or before),
    spending(run, prices),
    el("style", Markup(grid + style)),
    el("div", *boxes, el("div", head, *lines, cls="rows"), cls="sortable"),
    el("p", "A heading sorts the table. Gains are in points of the held-out pass rate, with 95% "
            "intervals (Newcombe) below; late: training pass rate of the last quarter of the run "
            "less that of the third, for what the last quarter cost.", cls="muted"),
  )  # fmt: skip


def price(run: Run) -> Mapping[str, float | None]:
  """Prices that the configuration gives, by name."""
  return run.config.get("cost") or {}


def usd(spent: Spent, prices: Mapping[str, float | None]) -> float | None:
  return spent.usd(prices.get("usd_per_device_hour"), prices.get("usd_per_sandbox_hour"))


def _columns(
  before: Mapping[str, PassRate],
  after: Mapping[str, PassRate],
  floors: Mapping[str, float | None],
  prices: Mapping[str, float | None],
) -> list[tuple[str, Callable[[Return], Any], Key]]:
  """(title, cell, sort key), the largest first; the first column keeps the order of the run."""

  def rate(rates: Mapping[str, PassRate]) -> Key:
    return lambda r: rates[r.domain].rate if r.domain in rates else None

  def per(unit: Callable[[Return], float | None], late: bool = False):
    def found(r: Return) -> Gain | None:
      amount, gained = unit(r), r.late if late else r.gain
      return gained.per(amount) if gained and amount else None

    return found

  by_hour = per(lambda r: r.spent.device_s / HOUR)
  by_peta = per(lambda r: r.spent.flops / PETA)
  by_usd = per(lambda r: usd(r.spent, prices))
  late = per(lambda r: r.late_spent.device_s / HOUR, late=True)
  columns = [
    ("domain", lambda r: r.domain, lambda r: 0.0),
    ("before", lambda r: percent(rate(before)(r)), rate(before)),
    ("after", lambda r: percent(rate(after)(r)), rate(after)),
    ("floor", lambda r: percent(floors.get(r.domain)), lambda r: floors.get(r.domain)),
    ("tokens", lambda r: f"{r.spent.tokens / 1e3:,.1f}k", lambda r: r.spent.tokens),
    ("PFLOP", lambda r: f"{r.spent.flops / PETA:.3g}", lambda r: r.spent.flops),
    ("device h", lambda r: f"{r.spent.device_s / HOUR:.3g}", lambda r: r.spent.device_s),
    ("sandbox h", lambda r: f"{r.spent.sandbox_s / HOUR:.3g}", lambda r: r.spent.sandbox_s),
    ("gain", lambda r: points(r.gain), lambda r: mean(r.gain)),
    ("gain / device h", lambda r: points(by_hour(r)), lambda r: mean(by_hour(r))),
    ("gain / PFLOP", lambda r: points(by_peta(r)), lambda r: mean(by_peta(r))),
    ("gain / USD", lambda r: points(by_usd(r)), lambda r: mean(by_usd(r))),
    ("late / device h", lambda r: points(late(r)), lambda r: mean(late(r))),
  ]  # fmt: skip
  idle = {"gain / USD": prices.get("usd_per_device_hour") is None, "floor": not floors}
  return [column for column in columns if not idle.get(column[0])]


def percent(rate: float | None) -> str:
  return "n/a" if rate is None else f"{100 * rate:.1f}%"


def mean(gain: Gain | None) -> float | None:
  return None if gain is None else gain.mean


def points(gain: Gain | None) -> Any:
  """Points of a pass rate over their interval."""
  if gain is None:
    return "n/a"
  low, high = (f"{100 * bound:+.3g}" for bound in (gain.low, gain.high))
  return el("span", f"{100 * gain.mean:+.3g}", el("small", f"{low} to {high}"))


def _order(rows: Sequence[Return], key: Key) -> list[int]:
  """The place of each row when the largest comes first; what has no value is last."""
  values = [key(row) for row in rows]
  ranked = sorted(
    range(len(rows)), key=lambda i: (values[i] is None, -(values[i] or 0.0), i)
  )  # fmt: skip
  places = [0] * len(rows)
  for place, i in enumerate(ranked):
    places[i] = place
  return places


def _line(row: Return, columns, places: Sequence[int], cls: str = "row") -> Markup:
  style = ";".join(f"--k{i}:{place}" for i, place in enumerate(places))
  return el("div", *(el("span", cell(row)) for _, cell, _ in columns), cls=cls, style=style)


def _radio(index: int) -> Markup:
  checked = " checked" if index == 0 else ""
  return Markup(f'<input type="radio" name="sort" id="by{index}"{checked}>')


def worst(run: Run, rates: Mapping[str, PassRate]) -> Markup:
  """The domains of the lowest pass rate, and quantiles over all of them."""
  if len(rates) < 2:
    return Markup()
  ordered = sorted(rates, key=lambda name: rates[name].rate)
  values = [rates[name].rate for name in ordered]
  quantiles = ", ".join(
    f"{q}% {percent(values[min(len(values) - 1, q * len(values) // 100)])}" for q in (10, 50, 90)
  )
  named = ", ".join(f"{name} {percent(rates[name].rate)}" for name in ordered[:WORST])
  return el("p", f"{len(rates)} domains; quantiles of the pass rate: {quantiles}. Lowest: {named}.")


def spending(run: Run, prices: Mapping[str, float | None]) -> Markup:
  """A line for each phase."""
  phases = by_phase(run.costs)
  parts = []
  for name, spent in phases.items():
    money = usd(spent, prices)
    cost = "" if money is None else f", {money:.3g} USD"
    parts.append(
      f"{name}: {spent.tokens:,.0f} tokens, {spent.flops / PETA:.3g} PFLOP, "
      f"{spent.device_s:,.0f} device seconds, {spent.sandbox_s:,.0f} sandbox seconds{cost}"
    )
  return join(*(el("p", part, cls="muted") for part in parts))
