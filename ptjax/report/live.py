"""The table that a run prints as it goes: one row a step, on a terminal or in a log."""

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

LOG_WIDTH = 120
"""Columns of a table that does not go to a terminal."""

HEADER_EVERY = 25
"""Rows between two headers: one is always in sight on a common terminal."""

ETA_STEPS = 20
"""Steps whose mean time predicts the remaining ones."""

MISSING = "-"

Values = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Column:
  """A heading, the metric under it, its format, its width, and the heading that it shares."""

  title: str
  metric: str
  spec: str
  width: int
  group: str = ""
  style: str = ""

  def cell(self, values: Values) -> str:
    value = values.get(self.metric)
    if value is None or not math.isfinite(value):
      return MISSING
    return compact(value) if self.spec == "compact" else format(value, self.spec)


REWARD = Column("all", "reward/mean", ".3f", 5, "reward", "bold")
AFTER_REWARD = (
  Column("kl", "policy/kl", ".4f", 6, "policy"),
  Column("entropy", "policy/entropy", ".3f", 7, "policy"),
  Column("length", "length/mean", ".0f", 6, "policy"),
  Column("roll", "perf/rollout_tokens_per_s", "compact", 5, "tokens/s", "dim"),
  Column("train", "perf/train_tokens_per_s", "compact", 6, "tokens/s", "dim"),
  Column("roll", "perf/time_rollout", ".1f", 5, "seconds", "dim"),
  Column("score", "perf/time_score", ".1f", 5, "seconds", "dim"),
  Column("train", "perf/time_train", ".1f", 5, "seconds", "dim"),
  Column("step", "perf/time_total", ".1f", 5, "seconds", "dim"),
)
LOWEST = Column("lowest domain", "", "", 20, "reward", "cyan")
ETA_WIDTH = 7


def compact(value: float) -> str:
  """A count in four or five characters: 950, 1.2k, 34k, 5.6M."""
  for unit, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
    scaled = value / scale
    if scaled < 999.5 or unit == "G":
      return f"{scaled:.0f}{unit}" if scaled >= 9.95 or not unit else f"{scaled:.1f}{unit}"
  raise AssertionError("unreachable: G takes every value")


def clock(seconds: float) -> str:
  """Seconds as m:ss, h:mm:ss, or 12h05m from ten hours on."""
  minutes, second = divmod(round(seconds), 60)
  hour, minute = divmod(minutes, 60)
  if hour >= 10:
    return f"{hour}h{minute:02}m"
  return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


class LiveTable:
  """Prints step, reward in total and by domain, KL, entropy, length, speed, times and ETA.

  Rows are plain lines, never redrawn: the same text reads well on a terminal, in a pipe and in a
  log. Where the domains do not fit the width, one column names the lowest of them.

  Args:
    total_steps: steps of the whole run.
    domains: names of the domains, in the order of their columns.
    file: where to print; standard output by default.
    width: columns to use; by default those of the terminal, or LOG_WIDTH without one.
  """

  def __init__(
    self,
    total_steps: int,
    domains: Sequence[str],
    *,
    file: IO[str] | None = None,
    width: int | None = None,
  ):
    self._console = Console(file=file, highlight=False)
    if width is None:
      width = self._console.width if self._console.is_terminal else LOG_WIDTH
    self._total_steps = total_steps
    self._domains = tuple(domains)
    self._seconds: deque[float] = deque(maxlen=ETA_STEPS)
    self._rows = 0
    self._step_width = max(4, 2 * len(str(total_steps)) + 1)
    self._columns = self._layout(width)

  def _layout(self, width: int) -> list[Column]:
    """All columns where they fit; else the domains are folded into the lowest one."""
    by_domain = [
      Column(name[-12:], f"reward/{name}", ".3f", max(5, min(len(name), 12)), "reward", "cyan")
      for name in self._domains
    ]
    if len(by_domain) == 1:  # the total says it already
      by_domain = []
    columns = [REWARD, *by_domain, *AFTER_REWARD]
    if len(self._line("", [" " * column.width for column in columns], "", columns)) <= width:
      return columns
    return [REWARD, LOWEST, *AFTER_REWARD] if by_domain else columns

  def row(self, step: int, values: Values):
    """Prints the row of `step`, counted from 0; `values` are the step's metrics by name."""
    seconds = values.get("perf/time_total")
    if seconds is not None and math.isfinite(seconds):
      self._seconds.append(seconds)
    if self._rows % HEADER_EVERY == 0:
      self._print_header()
    self._rows += 1
    cells = [
      self._lowest(values) if column is LOWEST else column.cell(values) for column in self._columns
    ]
    self._print(self._line(f"{step + 1}/{self._total_steps}", cells, self._eta(step)))

  def _line(
    self, step: str, cells: Sequence[str], eta: str, columns: Sequence[Column] | None = None
  ) -> Text:
    """One line of the table: cells right-justified, two spaces where a group begins."""
    line = Text(step.rjust(self._step_width))
    group = None
    for column, cell in zip(columns or self._columns, cells, strict=True):
      gap = " " if column.group == group else "  "
      line.append(gap + cell.rjust(column.width), style=column.style)
      group = column.group
    line.append("  " + eta.rjust(ETA_WIDTH), style="dim")
    return line

  def _print_header(self):
    groups = Text(" " * self._step_width, style="dim")
    for group, members in itertools.groupby(self._columns, key=lambda column: column.group):
      widths = [column.width for column in members]
      groups.append("  " + f" {group} ".center(sum(widths) + len(widths) - 1, "-"))
    self._print(groups)
    titles = self._line("step", [column.title for column in self._columns], "eta")
    titles.stylize("bold not dim")
    self._print(titles)

  def _lowest(self, values: Values) -> str:
    """Reward and name of the domain with the lowest reward; the tail of a name tells most."""
    rewards = [(values.get(f"reward/{name}"), name) for name in self._domains]
    scored = [(reward, name) for reward, name in rewards if reward is not None]
    if not scored:
      return MISSING
    reward, name = min(scored)
    return f"{name[6 - LOWEST.width :]} {reward:.3f}"

  def _eta(self, step: int) -> str:
    if not self._seconds:
      return MISSING
    remaining = max(self._total_steps - step - 1, 0)
    return clock(remaining * sum(self._seconds) / len(self._seconds))

  def _print(self, line: Text):
    # soft_wrap leaves a narrow terminal to wrap as it likes; a log keeps one line a step.
    self._console.print(line, soft_wrap=True)
    self._console.file.flush()
