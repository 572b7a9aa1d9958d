"""The report of an evaluation of long contexts: one self-contained page, tables and pictures."""

import json
import os
import pathlib
from collections.abc import Sequence

from ptjax.core.config import to_json
from ptjax.evals.context_run import Record
from ptjax.evals.context_table import (
  Summary,
  depth_rows,
  filing_rows,
  ruler_rows,
  to_markdown,
  to_tree,
)
from ptjax.report import context_figures as figures
from ptjax.report.figures import render_svg
from ptjax.report.html import POLICY
from ptjax.report.markup import Markup, el, join
from ptjax.report.style import CSS

_EXAMPLES = 8
_SHOWN_CHARACTERS = 600


def write_outputs(summary: Summary, records: Sequence[Record], workdir: pathlib.Path) -> list[str]:
  """Writes summary.json, summary.md, report.html and the pictures; returns their names."""
  texts = {
    "summary.json": json.dumps(to_tree(summary), indent=2) + "\n",
    "summary.md": to_markdown(summary),
    "report.html": render(summary, records),
  }
  for name, text in texts.items():
    staging = workdir / f"{name}.tmp"
    staging.write_text(text, encoding="utf-8")
    os.replace(staging, workdir / name)
  panels = sum(map(bool, (summary.needle, summary.ruler, summary.middle)))
  pictures = {"picture.png": (4.6 * panels, lambda f: figures.draw_picture(f, summary))}
  if summary.needle:
    pictures["needle.png"] = (6.0, lambda f: figures.draw_heat(f.subplots(), summary.needle))
  for name, (width, fill) in pictures.items():
    figures.write_png(workdir / name, width, 4.2, fill)
  return [*texts, *pictures]


def render(summary: Summary, records: Sequence[Record]) -> str:
  """The whole page."""
  config = summary.config
  body = el(
    "main",
    el("h1", f"{config.name}: long contexts of {config.model.source}"),
    _headline(summary),
    *_ruler(summary),
    *_needle(summary),
    *_middle(summary),
    *_filings(summary),
    el("h2", "Answers"),
    *_examples(records),
    el("details", el("summary", "Configuration"), el("pre", to_json(config))),
  )
  head = el(
    "head",
    Markup('<meta charset="utf-8">'),
    Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
    Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
    el("title", f"{config.name}: long contexts"),
    el("style", Markup(CSS)),
  )
  return "<!doctype html>\n" + el("html", head, el("body", body), lang="en") + "\n"


def _headline(summary: Summary) -> Markup:
  """RULER's mean at the shortest and the longest length, in the largest type."""
  if not summary.ruler:
    return Markup()
  row = list(summary.ruler["mean"].items())
  (short, first), (long, last) = row[0], row[-1]
  shown = [el("span", f"{100 * last.mean:.1f}%", cls="to")]
  if len(row) > 1:
    shown = [
      el("span", f"{100 * first.mean:.1f}%", cls="from"),
      el("span", "→", cls="arrow"),
      *shown,
    ]
  lengths = f"from {short:,} to {long:,}" if len(row) > 1 else f"at {long:,}"
  tasks = len(summary.ruler) - 1
  return join(
    el("p", *shown, cls="headline"),
    el("p", f"RULER, mean of {tasks} tasks {lengths} tokens, {last.total} problems each."),
  )


def _ruler(summary: Summary) -> list[Markup]:
  if not summary.ruler:
    return []
  svg = render_svg("ruler", 7.5, 4.2, lambda axes: figures.draw_ruler(axes, summary.ruler))
  parts = [
    el("h2", "RULER"),
    el("p", "Percent, with Wilson 95% intervals. Texts and wording are ours, the rules RULER's: "
            "compare models with each other, not with published tables.", cls="muted"),
    el("div", el("figure", Markup(svg)), cls="wide"),
    _table(ruler_rows(summary), total="mean"),
  ]  # fmt: skip
  if any(summary.depths):
    svg = render_svg("depths", 7.5, 2.2, lambda axes: figures.draw_depths(axes, summary.depths))
    parts += [
      el("h3", "Where the needed facts stand"),
      el("div", el("figure", Markup(svg)), cls="wide"),
    ]
  return parts


def _needle(summary: Summary) -> list[Markup]:
  if not summary.needle:
    return []
  svg = render_svg("needle", 7.5, 4.0, lambda axes: figures.draw_heat(axes, summary.needle))
  return [
    el("h2", "Needle in a haystack"),
    el("p", "Percent of problems answered, by the depth of the fact and the length.", cls="muted"),
    el("div", el("figure", Markup(svg)), cls="wide"),
    el("details", el("summary", "With intervals"), _table(depth_rows(summary.needle))),
  ]


def _middle(summary: Summary) -> list[Markup]:
  if not summary.middle:
    return []
  svg = render_svg("middle", 7.5, 3.4, lambda axes: figures.draw_middle(axes, summary.middle))
  return [
    el("h2", "Lost in the middle"),
    el("p", "Questions over many documents, by the depth of the one that answers.", cls="muted"),
    el("div", el("figure", Markup(svg)), cls="wide"),
    el("details", el("summary", "With intervals"), _table(depth_rows(summary.middle))),
  ]


def _filings(summary: Summary) -> list[Markup]:
  if not summary.filings:
    return []
  what = "Numbers joined across tables and notes of annual reports, with sign and unit; percent."
  return [el("h2", "Filings"), el("p", what, cls="muted"), _table(filing_rows(summary))]


def _table(rows: list[list[str]], total: str = "") -> Markup:
  head = el("tr", *(el("th", cell) for cell in rows[0]))
  body = (
    el("tr", *(el("td", cell) for cell in row), cls="total" if row[0] == total else "")
    for row in rows[1:]
  )
  return el("table", head, *body)


def _examples(records: Sequence[Record]) -> list[Markup]:
  """Evenly chosen answers, what was asked for above what came."""
  chosen = records[:: max(1, len(records) // _EXAMPLES)][:_EXAMPLES]
  return [
    el(
      "div",
      el("h3", f"{r['task']}, {r['tokens']:,} tokens: {100 * r['score']:.0f}%"),
      el("p", f"wanted: {', '.join(r['answers'])}", cls="muted"),
      el("pre", r["response"][:_SHOWN_CHARACTERS]),
      cls="task",
    )
    for r in chosen
  ]
