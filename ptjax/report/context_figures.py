"""Figures of an evaluation of long contexts: a heat map, curves by depth and by length."""

from typing import TYPE_CHECKING

from ptjax.evals.context_table import Score, Summary
from ptjax.report.figures import INK, PAPER, SERIES, STYLE, legend_above

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

Curves = dict[int, dict[float, Score]]

# Failing to passing. None of them is a colour of the palette: they mean the same on a dark page.
_RAMP = ("#b9542c", "#e2a577", "#efe5d4", "#9dbbd8", "#2e61a4")
_DARK_TEXT, _LIGHT_TEXT = "#1c2024", "#fbfbfa"


def draw_heat(axes: "Axes", curves: Curves) -> None:
  """Score in percent by depth (down, the beginning above) and tokens (across)."""
  depths = sorted({depth for curve in curves.values() for depth in curve})
  grid = [[curve[depth].mean for curve in curves.values()] for depth in depths]
  _draw_grid(axes, grid, [f"{depth:.0%}" for depth in depths], list(curves))
  axes.set_ylabel("depth of the fact")


def draw_ruler(axes: "Axes", table: dict[str, dict[int, Score]]) -> None:
  """Score in percent by task (down, their mean last) and tokens (across)."""
  grid = [[score.mean for score in row.values()] for row in table.values()]
  _draw_grid(axes, grid, list(table), list(table["mean"]))
  axes.get_yticklabels()[-1].set_fontweight("bold")


def _draw_grid(axes: "Axes", grid: list[list[float]], rows: list[str], lengths: list[int]) -> None:
  """Coloured cells with their percent in them."""
  import numpy as np
  from matplotlib.colors import LinearSegmentedColormap

  percent = 100 * np.asarray(grid)
  ramp = LinearSegmentedColormap.from_list("score", _RAMP)
  axes.imshow(percent, cmap=ramp, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
  for row, column in np.ndindex(*percent.shape):
    value = percent[row, column]
    color = _LIGHT_TEXT if value < 12 or value > 88 else _DARK_TEXT
    axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize=8)
  axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths])
  axes.set_yticks(range(len(rows)), rows)
  axes.set_xlabel("tokens")
  axes.grid(visible=False)
  # Seams between the cells.
  axes.set_xticks(np.arange(len(lengths) + 1) - 0.5, minor=True)
  axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
  axes.grid(which="minor", color=PAPER, linewidth=1.5)
  axes.tick_params(which="both", length=0)
  axes.spines["bottom"].set_visible(False)


def draw_middle(axes: "Axes", curves: Curves) -> None:
  """Score by depth, one curve for each length, with its 95% interval."""
  for index, (tokens, curve) in enumerate(curves.items()):
    color = SERIES[index % len(SERIES)]
    x = [100 * depth for depth in curve]
    low, high = zip(*(score.interval for score in curve.values()), strict=True)
    axes.fill_between(
      x, [100 * v for v in low], [100 * v for v in high], color=color, alpha=0.14, linewidth=0
    )
    y = [100 * score.mean for score in curve.values()]
    axes.plot(x, y, color=color, marker="o", markersize=3.5, label=f"{tokens:,} tokens")
  axes.set_xlabel("depth of the fact, %")
  axes.set_ylabel("answered, %")
  axes.set_ylim(-3, 103)
  axes.margins(x=0.02)
  legend_above(axes, 4)


def draw_depths(axes: "Axes", counts: list[int]) -> None:
  """How many facts stand in each equal part of the texts."""
  bins = len(counts)
  axes.bar(range(bins), counts, color=SERIES[2], width=0.9)
  axes.set_xticks(range(bins), [f"{100 * i // bins}-{100 * (i + 1) // bins}" for i in range(bins)])
  axes.set_xlabel("depth, % of the text")
  axes.set_ylabel("facts")


def draw_picture(figure: "Figure", summary: Summary) -> None:
  """Needles, RULER and the curve by depth, side by side."""
  panels = (
    ("Needle in a haystack, % found", summary.needle, lambda a: draw_heat(a, summary.needle)),
    ("RULER, % by task", summary.ruler, lambda a: draw_ruler(a, summary.ruler)),
    ("Lost in the middle", summary.middle, lambda a: draw_middle(a, summary.middle)),
  )
  present = [panel for panel in panels if panel[1]]
  for axes, (title, _, draw) in zip(
    figure.subplots(1, len(present), squeeze=False)[0], present, strict=True
  ):
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=26, color=INK)
    draw(axes)


def write_png(path, width: float, height: float, fill) -> None:
  """`fill(figure)` as a PNG of 200 dots an inch."""
  import matplotlib as mpl
  from matplotlib.figure import Figure
  from matplotlib.layout_engine import ConstrainedLayoutEngine

  with mpl.rc_context({**STYLE, "font.size": 9.5}):
    layout = ConstrainedLayoutEngine(wspace=0.08, w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(width, height), layout=layout, facecolor=PAPER)
    fill(figure)
    figure.savefig(path, format="png", dpi=200, metadata={"Software": None})
