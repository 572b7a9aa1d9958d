"""What a person sees while a run goes on."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ptjax.evals.heldout import PassRate
from ptjax.report.live import LiveTable
from ptjax.train.experiment import Experiment
from ptjax.train.run import Observer


def terminal_observer(experiment: Experiment) -> Observer:
  """Status lines, the live table, and the held-out pass rates, on standard output."""
  console = Console(highlight=False)
  live = LiveTable(experiment.rl.num_steps, [d.name for d in experiment.domains])
  earlier: dict[str, PassRate] = {}

  def on_eval(when: str, rates: Sequence[PassRate]) -> None:
    console.print(pass_rate_table(when, rates, earlier))
    earlier.update((rate.domain, rate) for rate in rates)

  def on_status(line: str) -> None:
    console.print(line, soft_wrap=True)

  return Observer(on_status, live.row, on_eval)


def pass_rate_table(when: str, rates: Sequence[PassRate], earlier: dict[str, PassRate]) -> Table:
  """Pass rates with Wilson 95% intervals; beside the earlier ones, where there are any."""
  table = Table(title=f"held-out pass rate, {when} training (Wilson 95%)", title_justify="left")
  table.add_column("domain")
  if earlier:
    table.add_column("before", justify="right")
  table.add_column(when, justify="right")
  for rate in rates:
    before = [_cell(earlier[rate.domain])] if rate.domain in earlier else [""] * bool(earlier)
    table.add_row(rate.domain, *before, _cell(rate))
  return table


def _cell(rate: PassRate) -> str:
  low, high = rate.interval
  return f"{rate.passed}/{rate.total} = {rate.rate:.1%} [{low:.1%}, {high:.1%}]"
