"""The report of a run: one self-contained HTML page, and one picture.

The page holds no script and loads nothing: it opens from a disk, an attachment or an artifact
store. Everything that a model wrote is escaped, and a content security policy backs that up.
"""

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ptjax.core.metrics import PERF_PREFIX
from ptjax.report import domains, figures, samples
from ptjax.report.live import compact
from ptjax.report.markup import Markup, el, join
from ptjax.report.run import PassRate, Run, load_run
from ptjax.report.style import CSS

PACKAGES = ("ptjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")

DOMAINS_SHOWN = 20
"""Domains in the figure and the table of pass rates: beyond that, the lowest ones."""

_QUANTILES = (
  ("domains/pass_q90", "90%"),
  ("domains/pass_q50", "median"),
  ("domains/pass_q10", "10%"),
  ("domains/pass_worst", "worst 5"),
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(workdir: str | os.PathLike) -> Path:
  """Writes `<workdir>/report.html` from the files of the run, and returns its path.

  Reads `metrics.jsonl`, `eval.jsonl`, `trajectories.jsonl` and `config.json`; what is absent is
  named on the page. The same files give the same page.

  Raises:
    ValueError: the directory does not exist, or a file in it is damaged.
  """
  path = Path(workdir) / "report.html"
  page = render(load_run(workdir))
  staging = path.with_suffix(".html.tmp")
  staging.write_text(page, encoding="utf-8")
  os.replace(staging, path)
  return path


def write_picture(workdir: str | os.PathLike, path: str | os.PathLike) -> Path:
  """Writes one PNG, 2400 x 840 pixels, with pass rates, rewards and step times; returns its path.

  Raises:
    ValueError: the directory does not exist, or a file in it is damaged.
  """
  import matplotlib as mpl
  from matplotlib.figure import Figure
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  run = load_run(workdir)
  with mpl.rc_context({**figures.STYLE, "font.size": 9.5}):
    layout = ConstrainedLayoutEngine(wspace=0.08, w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(12, 4.2), layout=layout, facecolor=figures.PAPER)
    figures.draw_picture(figure, run)
    figure.savefig(path, format="png", dpi=200, metadata={"Software": None})
  return Path(path)


def render(run: Run) -> str:
  """The whole page."""
  body = el(
    "main",
    el("h1", f"ptjax run {run.name}"),
    headline(run),
    notices(run),
    facts(run),
    held_out(run),
    held_out_examples(run),
    domains.table(run),
    domains.decisions(run),
    el("h2", "Training"),
    el("p", curves_caption(run), cls="muted"),
    el("div", *training_figures(run), cls="grid"),
    el("h2", "Time and speed"),
    el("div", *speed_figures(run), cls="grid"),
    el("h2", "Samples"),
    samples.before_and_after(run),
    samples.during_training(run.trajectories),
    el("h2", "Configuration"),
    configuration(run),
  )
  head = el(
    "head",
    Markup('<meta charset="utf-8">'),
    Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
    Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
    el("title", f"{run.name}: ptjax report"),
    el("style", Markup(CSS)),
  )
  return "<!doctype html>\n" + el("html", head, el("body", body), lang="en") + "\n"


def percent(rate: float) -> str:
  return f"{100 * rate:.1f}%"


def duration(seconds: float) -> str:
  if seconds < 90:
    return f"{seconds:.0f} s"
  return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def interval(rate: PassRate) -> str:
  low, high = rate.interval
  return f"{100 * low:.1f} to {100 * high:.1f}"


def headline(run: Run) -> Markup:
  """Held-out pass rate before and after, of all domains together, in the largest type."""
  rows = figures.pass_rate_rows(run)
  _, before, after = rows[0] if rows else ("", None, None)
  if before is None and after is None and run.heldout:
    return Markup()
  if before is None and after is None:
    return el("p", "No held-out evaluation was recorded.", cls="headline muted")
  shown = [
    el("span", percent(before.rate) if before else "not measured", cls="from"),
    el("span", "→", cls="arrow"),
    el("span", percent(after.rate) if after else "not yet", cls="to"),
  ]
  what = "Held-out tasks passed, before and after post-training"
  if before and after:
    apart = before.interval[1] < after.interval[0] or after.interval[1] < before.interval[0]
    verb = "do not overlap" if apart else "overlap"
    what += (
      f": {before.passed} of {before.total} and {after.passed} of {after.total}."
      f" 95% intervals: {interval(before)}% before, {interval(after)}% after; they {verb}"
    )
  return join(el("div", *shown, cls="headline"), el("p", f"{what}.", cls="muted"))


def notices(run: Run) -> Markup:
  """What the reader must know before trusting the page: absent files and phases."""
  lines = [f"{name} is not in the working directory." for name in run.missing]
  before, after = run.pass_rates("before"), run.pass_rates("after")
  if run.evals and not after:
    lines.append(
      "There is no evaluation after training: the run is still going, or it was stopped"
      f" (last step on record: {run.metrics[-1]['step'] if run.metrics else 'none'})."
    )
  if run.evals and not before:
    lines.append("There is no evaluation before training.")
  if after and before and set(before) != set(after):
    only = ", ".join(sorted(set(before) ^ set(after)))
    lines.append(f"Measured on one side only, so the totals do not compare: {only}.")
  if not lines:
    return Markup()
  return el("div", *(el("p", line) for line in lines), cls="notice")


def facts(run: Run) -> Markup:
  """A strip of totals; speeds are medians over steps."""
  if not run.metrics:
    return Markup()
  total = run.series("perf/time_total").finite
  memory = run.series("perf/peak_memory_gb").finite
  reward = run.series("reward/mean").finite
  entries = [(str(len(run.metrics)), "steps on record"), (str(len(run.domains)), "domains")]
  if total:
    entries.append((duration(sum(total)), "in training steps"))
  if reward:
    entries.append((f"{reward[0]:.2f}, {reward[-1]:.2f}", "mean reward, first and last step"))
  for name, label in (
    ("perf/rollout_tokens_per_s", "rollout tokens/s"),
    ("perf/train_tokens_per_s", "training tokens/s"),
  ):
    values = sorted(run.series(name).finite)
    if values:
      entries.append((compact(values[len(values) // 2]), label))
  if memory:
    entries.append((f"{max(memory):.1f} GB", "peak memory"))
  return el("div", *(el("div", el("b", b), el("span", s)) for b, s in entries), cls="facts")


def held_out(run: Run) -> Markup:
  """The dot-and-interval figure, its numbers, and the curve over steps where there is one."""
  every = figures.pass_rate_rows(run)
  if not every:
    return Markup()
  rows = figures.lowest(every, DOMAINS_SHOWN)
  height = 0.95 + 0.42 * len(rows)
  dots = figures.render_svg(
    "held-out", 11.2, height, lambda axes: figures.draw_pass_rates(axes, rows)
  )
  caption = "Bars: 95% Wilson score intervals."
  if len(rows) < len(every):
    caption += f" The {DOMAINS_SHOWN} lowest of {len(every) - 1} domains are shown."
  header = ("domain", "before", "95% interval", "tasks", "after", "95% interval", "tasks")
  body = [
    el("tr", *(el("td", cell) for cell in table_row(*row)), cls="total" if index == 0 else "")
    for index, row in enumerate(rows)
  ]
  parts = [
    el("h2", "Held-out pass rate"),
    chart(dots, "held-out pass rate by domain, before and after", caption, "wide"),
    el("table", el("tr", *(el("th", title) for title in header)), *body),
  ]
  if len(run.held_out_by_step()) > 2:
    curve = figures.render_svg("by-step", 11.2, 2.7, lambda axes: figures.draw_held_out(axes, run))
    caption = "All domains together at every evaluation; band: 95% Wilson score interval."
    parts.append(chart(curve, "held-out pass rate by step", caption, "wide"))
  return join(*parts)


def held_out_examples(run: Run) -> Markup:
  """What a supervised run measured on its held-out examples, a column each time."""
  if not run.heldout:
    return Markup()
  names = sorted({name for row in run.heldout for name in row} - {"when", "step"})
  header = el("tr", el("th", "metric"), *(el("th", row["when"]) for row in run.heldout))
  rows = []
  for name in names:
    values = (row.get(name) for row in run.heldout)
    shown = (el("td", "n/a" if value is None else f"{value:.4g}") for value in values)
    rows.append(el("tr", el("td", name), *shown))
  return join(el("h2", "Held-out examples"), el("table", header, *rows))


def table_row(name: str, before: PassRate | None, after: PassRate | None) -> Iterator[str]:
  yield name
  for rate in (before, after):
    yield from (percent(rate.rate), interval(rate), str(rate.total)) if rate else ("n/a",) * 3


def curves_caption(run: Run) -> str:
  if len(run.metrics) < figures.SMOOTH_FROM:
    return "One point a step."
  return (
    f"Thin: every step. Bold: centred mean of {figures.SMOOTH_WINDOW} steps. Gaps: not recorded."
  )


def chart(svg: str, label: str, caption: str = "", cls: str = "") -> Markup:
  picture = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
  return el("figure", Markup(picture), el("figcaption", caption) if caption else "", cls=cls)


def panel(run: Run, name: str, title: str, needs: tuple[str, ...], draw: Callable) -> Markup:
  """A titled figure, or a line that names the metric that was not recorded."""
  if not any(run.series(metric) for metric in needs):
    missing = el("p", f"{' and '.join(needs)}: not recorded.", cls="muted")
    return el("figure", el("h3", title), missing)
  svg = figures.render_svg(name, 5.4, 2.7, lambda axes: draw(axes, run))
  return el("figure", el("h3", title), chart(svg, title))


def curves(run: Run, name: str, title: str, unit: str, named: tuple[tuple[str, str], ...]):
  draw = partial(figures.draw_named, curves=named, y_label=unit)
  return panel(run, name, title, tuple(metric for metric, _ in named), draw)


def training_figures(run: Run) -> list[Markup]:
  if run.heldout:
    return supervised_figures(run)
  return [
    panel(run, "reward", "Reward by domain", ("reward/mean",), figures.draw_rewards),
    curves(run, "kl", "KL to the reference policy", "nats a token", (("policy/kl", "KL"),)),
    curves(run, "entropy", "Entropy", "nats a token", (("policy/entropy", "entropy"),)),
    *(
      [curves(run, "quantiles", "Pass rate over the domains", "training tasks", _QUANTILES)]
      if run.series("domains/pass_q50")
      else []
    ),
    curves(
      run, "length", "Response length", "tokens",
      (("length/mean", "mean"), ("length/min", "min"), ("length/max", "max")),
    ),
    curves(run, "grad", "Gradient norm before clipping", "norm", (("optim/grad_norm", "norm"),)),
    curves(
      run, "shares", "Shares of the batch", "share",
      (
        ("groups/zero_std_frac", "groups without signal"),
        ("length/clipped_frac", "cut at the limit"),
        ("policy/clip_frac_high", "ratio clipped above"),
      ),
    ),
  ]  # fmt: skip


def supervised_figures(run: Run) -> list[Markup]:
  """Loss, gradient, and each metric of the objective."""
  names = sorted({name for record in run.metrics for name in record} - {"step"})
  return [
    curves(run, "loss", "Loss", "loss", (("optim/loss", "loss"),)),
    curves(run, "grad", "Gradient norm before clipping", "norm", (("optim/grad_norm", "norm"),)),
    *(
      curves(run, name.replace("/", "-"), name, "", ((name, name),))
      for name in names
      if not name.startswith(("optim/", PERF_PREFIX))
    ),
  ]


def speed_figures(run: Run) -> list[Markup]:
  speeds = (("perf/rollout_tokens_per_s", "rollout"), ("perf/train_tokens_per_s", "training"))
  times = ("perf/time_total", *(metric for _, metric, _ in figures.TIME_PHASES))
  return [
    panel(run, "times", "Time of a step by phase", times, figures.draw_times),
    curves(run, "speed", "Throughput", "tokens/s", speeds),
  ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
  """Leaves of a nested configuration as (dotted name, JSON value)."""
  for name, value in tree.items():
    if isinstance(value, Mapping) and value:
      yield from flatten(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)


def configuration(run: Run) -> Markup:
  """The configuration in full, the versions, and where the numbers are."""
  rows = [
    el("tr", el("td", el("code", k)), el("td", el("code", v))) for k, v in flatten(run.config)
  ]
  table = (
    el("details", el("summary", f"{len(rows)} settings"), el("table", *rows, cls="config"))
    if rows
    else el("p", "config.json was not recorded.", cls="muted")
  )
  names = ", ".join(f"{name} {version}" for name, version in versions().items())
  note = (
    f"This page was written with {names}. All numbers come from metrics.jsonl and eval.jsonl"
    f" beside it; names under {PERF_PREFIX} depend on the machine."
  )
  return join(table, el("p", note, cls="muted"))


def versions() -> dict[str, str]:
  """Python and the packages of `PACKAGES` that are installed."""
  found = {"Python": platform.python_version()}
  for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name in PACKAGES:
      found[name] = distribution.version
  order = ("Python", *PACKAGES)
  return {name: found[name] for name in order if name in found}
