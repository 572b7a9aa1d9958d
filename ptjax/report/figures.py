"""The figures of the report, drawn with matplotlib and inlined as SVG that follows the theme.

Colours are drawn as the hex values of `PALETTE` and then replaced by CSS variables, so that one
picture serves a light and a dark page. The page asks for a figure only where the run has its data.
"""

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ptjax.report.run import PassRate, Run, Series, pooled

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure


class Row(NamedTuple):
  """A domain, and its held-out pass rate before and after."""

  name: str
  before: PassRate | None
  after: PassRate | None


# name: (on light paper, on dark paper)
PALETTE = {
  "paper": ("#fdfdfc", "#15181c"),
  "ink": ("#1d2126", "#e7e9ec"),
  "muted": ("#6a7078", "#989fa8"),
  "rule": ("#e3e4e2", "#2c3138"),
  "s0": ("#2f62a3", "#7aa7e0"),
  "s1": ("#c9772b", "#e6a262"),
  "s2": ("#2b8a76", "#63c2ad"),
  "s3": ("#a8476e", "#e08aac"),
  "s4": ("#6f5fa6", "#aa9be0"),
  "s5": ("#7d7f2c", "#c2c46b"),
}
INK, MUTED, RULE, PAPER = (PALETTE[name][0] for name in ("ink", "muted", "rule", "paper"))
SERIES = tuple(PALETTE[f"s{i}"][0] for i in range(6))

SMOOTH_FROM = 16
SMOOTH_WINDOW = 5
"""From SMOOTH_FROM steps on, curves show a centred running mean over the raw values, thin."""

STYLE = {
  "svg.fonttype": "none",
  "font.size": 9,
  "axes.edgecolor": MUTED,
  "axes.labelcolor": MUTED,
  "axes.facecolor": "none",
  "axes.grid": True,
  "axes.grid.axis": "y",
  "axes.axisbelow": True,
  "axes.linewidth": 0.6,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.spines.left": False,
  "grid.color": RULE,
  "grid.linewidth": 0.8,
  "xtick.color": MUTED,
  "ytick.color": MUTED,
  "xtick.major.size": 3,
  "xtick.major.width": 0.6,
  "ytick.major.size": 0,
  "text.color": INK,
  "legend.frameon": False,
  "legend.fontsize": 8.5,
  "legend.handlelength": 1.2,
  "legend.labelcolor": INK,
  "lines.linewidth": 1.7,
  "lines.solid_capstyle": "round",
}

TIME_PHASES = (
  ("rollout", "perf/time_rollout", SERIES[0]),
  ("scoring", "perf/time_score", SERIES[1]),
  ("training", "perf/time_train", SERIES[2]),
)


def render_svg(name: str, width: float, height: float, draw) -> str:
  """`draw(axes)` as one `<svg>` element, sizes in inches; the same input gives the same bytes."""
  import matplotlib as mpl
  from matplotlib.figure import Figure

  with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    draw(figure.subplots())
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
  svg = buffer.getvalue()
  svg = svg[svg.index("<svg") :]
  for variable, (light, _) in PALETTE.items():
    svg = svg.replace(light, f"var(--{variable})")
  # Ids are unique on the page, not only in the figure; the page sets width and typeface.
  for reference in (' id="', "url(#", 'href="#'):
    svg = svg.replace(reference, f"{reference}{name}-")
  return svg


def smooth(values: Sequence[float], window: int = SMOOTH_WINDOW) -> list[float]:
  """Centred running mean; null steps are left out of it, and stay gaps."""
  half = window // 2
  means = []
  for i, value in enumerate(values):
    near = [v for v in values[max(0, i - half) : i + half + 1] if math.isfinite(v)]
    means.append(sum(near) / len(near) if math.isfinite(value) else math.nan)
  return means


def plot_series(axes: "Axes", series: Series, color: str, label: str | None = None):
  """One curve: raw where it is short, else a running mean over the thin raw values."""
  if len(series.steps) < SMOOTH_FROM:
    marker = "o" if len(series.steps) < 3 else None
    axes.plot(series.steps, series.values, color=color, label=label, marker=marker, markersize=3)
    return
  axes.plot(series.steps, series.values, color=color, linewidth=0.6, alpha=0.45)
  axes.plot(series.steps, smooth(series.values), color=color, label=label)


def label_axes(axes: "Axes", y_label: str, x_label: str = "step"):
  from matplotlib.ticker import MaxNLocator

  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
  axes.margins(x=0.02)


def legend_above(axes: "Axes", columns: int):
  axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2)


def draw_pass_rates(axes: "Axes", rows: Sequence[Row]):
  """Dots and 95% intervals of held-out pass rates: hollow before, filled after."""
  before, after = [row.before for row in rows], [row.after for row in rows]
  sides = (
    ("before", before, -0.17, MUTED, PAPER), ("after", after, 0.17, SERIES[0], SERIES[0]),
  )  # fmt: skip
  for label, rates, offset, color, fill in sides:
    measured = [(y + offset, rate) for y, rate in enumerate(rates) if rate is not None]
    for y, rate in measured:
      low, high = rate.interval
      axes.plot([100 * low, 100 * high], [y, y], color=color, linewidth=2.2)
      beside, align = (100 * high + 1.5, "left") if high < 0.9 else (100 * low - 1.5, "right")
      text = f"{100 * rate.rate:.1f}"
      axes.text(beside, y, text, color=color, ha=align, va="center_baseline", fontsize=8.5)
    if measured:
      axes.plot(
        [100 * rate.rate for _, rate in measured], [y for y, _ in measured], "o", label=label,
        markersize=7, color=color, markerfacecolor=fill, markeredgewidth=1.6, zorder=3,
      )  # fmt: skip
  legend_above(axes, 2)
  axes.set_yticks(range(len(rows)), [row.name for row in rows])
  axes.tick_params(axis="y", labelcolor=INK, labelsize=10)
  axes.set_ylim(len(rows) - 0.5, -0.5)
  axes.set_xlim(-1, 101)
  axes.set_xlabel("held-out tasks passed, %")
  axes.grid(axis="x")
  axes.grid(visible=False, axis="y")


def pass_rate_rows(run: Run) -> list[Row]:
  """(label, before, after) by domain, preceded by all together when there are several."""
  before, after = run.pass_rates("before"), run.pass_rates("after")
  domains = [name for name in run.domains if name in before or name in after]
  rows = [Row(name, before.get(name), after.get(name)) for name in domains]
  if len(rows) > 1:
    together = [pooled(rates.values()) if rates else None for rates in (before, after)]
    rows = [Row("all together", *together), *rows]
  return rows


def lowest(rows: Sequence[Row], count: int) -> Sequence[Row]:
  """The total and the `count` domains of the lowest rate after (else before), if not all fit."""
  if len(rows) <= count + 1:
    return rows

  def latest(row: Row) -> float:
    return next(rate for rate in (row.after, row.before) if rate).rate

  return [rows[0], *sorted(rows[1:], key=latest)[:count]]


def draw_rewards(axes: "Axes", run: Run):
  """The mean reward and that of each domain; beyond the palette, domains are thin and grey."""
  by_domain = run.reward_by_domain()
  few = len(by_domain) <= len(SERIES)
  for index, (domain, series) in enumerate(by_domain.items()):
    if few:
      plot_series(axes, series, SERIES[index], domain)
    else:
      axes.plot(series.steps, series.values, color=MUTED, linewidth=0.5, alpha=0.5)
  if len(by_domain) != 1:
    plot_series(axes, run.series("reward/mean"), INK, "all")
  label_axes(axes, "mean reward of the step")
  legend_above(axes, 4)


def draw_named(axes: "Axes", run: Run, curves: Sequence[tuple[str, str]], y_label: str, zero=True):
  """Several metrics in one plot, (metric, label) each; a single one needs no legend."""
  present = [(run.series(metric), label) for metric, label in curves if run.series(metric)]
  for index, (series, label) in enumerate(present):
    plot_series(axes, series, SERIES[index], label)
  label_axes(axes, y_label)
  if zero:
    axes.set_ylim(bottom=min(0.0, *(min(series.finite) for series, _ in present)))
  if len(present) > 1:
    legend_above(axes, len(present))


def draw_times(axes: "Axes", run: Run):
  """Seconds of each step, stacked by phase; what the phases leave of the total is `other`."""
  total = run.series("perf/time_total")
  rows = {record["step"]: record for record in run.metrics}
  steps = list(total.steps) or sorted(rows)
  floor = [0.0] * len(steps)
  phases = [*TIME_PHASES, ("other", None, MUTED)]
  for label, metric, color in phases:
    if metric is None:
      wall = [rows[step].get("perf/time_total") or 0.0 for step in steps]
      top = [max(w, f) for w, f in zip(wall, floor, strict=True)]
    else:
      top = [f + (rows[step].get(metric) or 0.0) for f, step in zip(floor, steps, strict=True)]
    if top != floor:
      x = [steps[0] - 0.5, *steps, steps[-1] + 0.5]  # so that a single step has a width
      low, high = ([y[0], *y, y[-1]] for y in (floor, top))
      axes.fill_between(x, low, high, step="mid", color=color, linewidth=0, alpha=0.85, label=label)
    floor = top
  label_axes(axes, "seconds a step")
  axes.set_ylim(bottom=0)
  legend_above(axes, 4)


def draw_held_out(axes: "Axes", run: Run):
  """Pooled held-out pass rate at every evaluated step, with its 95% interval."""
  rates = run.held_out_by_step()
  steps = list(rates)
  percent = [100 * rates[step].rate for step in steps]
  bounds = [[100 * bound for bound in rates[step].interval] for step in steps]
  lows, highs = zip(*bounds, strict=True)
  axes.fill_between(steps, lows, highs, color=SERIES[0], alpha=0.18, linewidth=0)
  axes.plot(steps, percent, color=SERIES[0], marker="o", markersize=4)
  label_axes(axes, "held-out tasks passed, %")
  axes.set_ylim(bottom=0)


def draw_picture(figure: "Figure", run: Run):
  """Three panels for one glance: pass rates before and after, rewards, and where time goes."""
  left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
  rows = lowest(pass_rate_rows(run), 6)
  titles = ("Held-out pass rate, 95% intervals", "Reward", "Time of a step")
  draws = (
    lambda axes: draw_pass_rates(axes, rows),
    lambda axes: draw_rewards(axes, run),
    lambda axes: draw_times(axes, run),
  )
  present = (rows, run.series("reward/mean"), run.series("perf/time_total"))
  for axes, title, draw, data in zip((left, middle, right), titles, draws, present, strict=True):
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=26)
    if data:
      draw(axes)
    else:
      axes.set_axis_off()
      axes.text(0.5, 0.5, "not recorded", color=MUTED, ha="center", transform=axes.transAxes)
