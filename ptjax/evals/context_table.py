"""What the answers of an evaluation of long contexts come to: tables, grid and curve."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from ptjax.core.stats import wilson_interval
from ptjax.domains.context_tasks.problem import depth_histogram
from ptjax.evals.context_config import ContextEval, Part
from ptjax.evals.context_run import Record

HISTOGRAM_BINS = 8


@dataclasses.dataclass(frozen=True)
class Score:
  """The mean score of some answers, each from 0 to 1.

  Attributes:
    mean: nan of none.
    total: answers.
  """

  mean: float
  total: int

  @classmethod
  def of(cls, records: Iterable[Record]) -> "Score":
    scores = [record["score"] for record in records]
    return cls(sum(scores) / len(scores) if scores else math.nan, len(scores))

  @property
  def interval(self) -> tuple[float, float]:
    """Wilson 95%. Where answers earn parts of a point it is too wide, never too narrow: among all
    distributions on [0, 1] with one mean, that of passes and failures varies most."""
    if not self.total:
      return math.nan, math.nan
    return wilson_interval(self.mean * self.total, self.total)

  def tree(self) -> dict[str, Any]:
    return {"mean": self.mean, "interval": list(self.interval), "total": self.total}


@dataclasses.dataclass(frozen=True)
class Summary:
  """All that the report shows.

  Attributes:
    config: what was measured.
    ruler: RULER's score by task and length; the task "mean" is that of all tasks.
    needle, middle: score by length and depth.
    filings: score by length.
    depths: facts by equal parts of the text, of all RULER problems that have places.
  """

  config: ContextEval
  ruler: dict[str, dict[int, Score]]
  needle: dict[int, dict[float, Score]]
  middle: dict[int, dict[float, Score]]
  filings: dict[int, Score]
  depths: list[int]


def summarize(config: ContextEval, records: Sequence[Record]) -> Summary:
  """Counts the records of the configuration."""
  of_ruler = [r for r in records if r["part"] == "ruler"]
  table: dict[str, dict[int, Score]] = {}
  if config.ruler is not None:
    for task in config.ruler.tasks:
      table[task] = {
        tokens: Score.of(r for r in of_ruler if (r["task"], r["tokens"]) == (task, tokens))
        for tokens in config.ruler.lengths
      }
    # Every task has as many samples, so that this is the mean of the tasks' scores too.
    table["mean"] = {
      tokens: Score.of(r for r in of_ruler if r["tokens"] == tokens)
      for tokens in config.ruler.lengths
    }
  places = [depth for record in of_ruler for depth in record["depths"]]
  return Summary(
    config,
    table,
    _by_depth("needle", records),
    _by_depth("middle", records),
    _by_length([r for r in records if r["part"] == "filings"]),
    depth_histogram(places, HISTOGRAM_BINS),
  )


def _by_length(records: Sequence[Record]) -> dict[int, Score]:
  lengths = sorted({r["tokens"] for r in records})
  return {n: Score.of(r for r in records if r["tokens"] == n) for n in lengths}


def _by_depth(part: Part, records: Sequence[Record]) -> dict[int, dict[float, Score]]:
  own = sorted((r for r in records if r["part"] == part), key=lambda r: (r["tokens"], r["depth"]))
  found: dict[int, dict[float, Score]] = {}
  for (tokens, depth), group in itertools.groupby(own, key=lambda r: (r["tokens"], r["depth"])):
    found.setdefault(tokens, {})[depth] = Score.of(group)
  return found


def middle_gap(curve: dict[float, Score]) -> float:
  """By how much the score of the outer thirds exceeds that of the middle third, from -1 to 1."""
  inside = [s for depth, s in curve.items() if 1 / 3 <= depth <= 2 / 3]
  outside = [s for depth, s in curve.items() if not 1 / 3 <= depth <= 2 / 3]
  return _mean(outside) - _mean(inside)


def _mean(scores: Sequence[Score]) -> float:
  total = sum(s.total for s in scores)
  return sum(s.mean * s.total for s in scores) / total if total else math.nan


def to_tree(summary: Summary) -> dict[str, Any]:
  """The summary as JSON types."""
  return {
    "name": summary.config.name,
    "model": summary.config.model.source,
    "ruler": {
      task: {str(tokens): score.tree() for tokens, score in row.items()}
      for task, row in summary.ruler.items()
    },
    "needle": _curves(summary.needle),
    "middle": _curves(summary.middle),
    "filings": {str(tokens): score.tree() for tokens, score in summary.filings.items()},
    "fact_depths": summary.depths,
  }


def _curves(curves: dict[int, dict[float, Score]]) -> dict[str, Any]:
  return {
    str(tokens): {
      "outer_minus_middle": middle_gap(curve),
      "by_depth": {f"{depth:.3f}": score.tree() for depth, score in curve.items()},
    }
    for tokens, curve in curves.items()
  }


def cell_text(score: Score) -> str:
  """A score in percent with its interval."""
  low, high = score.interval
  return f"{100 * score.mean:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def ruler_rows(summary: Summary) -> list[list[str]]:
  """The table of RULER as text, its head first."""
  if not summary.ruler:
    return []
  lengths = list(summary.ruler["mean"])
  head = ["task", *(f"{tokens:,}" for tokens in lengths)]
  return [head, *([t, *map(cell_text, row.values())] for t, row in summary.ruler.items())]


def depth_rows(curves: dict[int, dict[float, Score]]) -> list[list[str]]:
  """Scores by depth (down) and length (across) as text, the head first, the gap last."""
  if not curves:
    return []
  depths = sorted({depth for curve in curves.values() for depth in curve})
  head = ["depth", *(f"{tokens:,}" for tokens in curves)]
  rows = [[f"{depth:.0%}", *(cell_text(c[depth]) for c in curves.values())] for depth in depths]
  gap = ["outer minus middle third", *(f"{100 * middle_gap(c):+.1f}" for c in curves.values())]
  return [head, *rows, gap]


def filing_rows(summary: Summary) -> list[list[str]]:
  """The scores over filings as text, the head first."""
  if not summary.filings:
    return []
  return [
    ["", *(f"{tokens:,}" for tokens in summary.filings)],
    ["answered", *map(cell_text, summary.filings.values())],
  ]


def to_markdown(summary: Summary) -> str:
  """The tables as a page of markdown."""
  lines = [f"# {summary.config.name}: {summary.config.model.source}", ""]
  for title, rows in (
    ("RULER, percent with Wilson 95% intervals, by tokens", ruler_rows(summary)),
    ("Needle, percent by depth and tokens", depth_rows(summary.needle)),
    ("Lost in the middle, percent by depth and tokens", depth_rows(summary.middle)),
    ("Filings, percent by tokens", filing_rows(summary)),
  ):
    if rows:
      rule = ["---", *("---:" for _ in rows[0][1:])]
      table = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
      lines += [f"## {title}", "", *table, ""]
  if any(summary.depths):
    counts = " ".join(map(str, summary.depths))
    lines += [f"Facts of RULER's problems by eighths of the text: {counts}", ""]
  return "\n".join(lines)
