"""Shows a run in the terminal: pass rates, metrics, trajectories, and the path of its report."""

import argparse
import collections
import math
import statistics
import webbrowser
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

NAME = "view"
HELP = "show a run in the terminal and write its report"
EPILOG = """\
examples:
  python -m ptjax.launch view runs/demo
  python -m ptjax.launch view runs/demo --samples 3 --domain code
  python -m ptjax.launch view runs/demo --open
  python -m ptjax.launch view runs/demo --verdict 19.0=bad --annotator a17
  python -m ptjax.launch view runs/demo --preferences pairs.jsonl

The report, DIR/report.html, is written anew from the files of the run, which may be live.
"""

CHARACTERS_SHOWN = 1500
REVIEWS_SHOWN = 5
DOMAINS_SHOWN = 20
"""Of more domains than that, metrics of single ones are left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("directory", metavar="DIR", help="workdir of a run")
  parser.add_argument(
    "--samples", type=int, default=1, metavar="N", help="latest trajectories a domain (default 1)"
  )
  parser.add_argument("--domain", metavar="NAME", help="trajectories of this domain only")
  parser.add_argument("--open", action="store_true", help="open the report in a browser")
  parser.add_argument(
    "--verdict", metavar="ID=good|bad", help="your verdict on an answer of the review queue"
  )
  parser.add_argument("--annotator", default="", metavar="NAME", help="who judges")
  parser.add_argument(
    "--preferences", metavar="FILE", help="write the verdicts as preference data for `prefer`"
  )


def run(args: argparse.Namespace) -> int:
  from ptjax.data import reviews
  from ptjax.report.run import load_run

  record = load_run(args.directory)
  if args.domain and args.domain not in record.domains:
    raise ValueError(f"no domain {args.domain} in this run; use one of {record.domains}")
  console = Console()
  if args.verdict:
    judge(args.directory, args.verdict, args.annotator)
  if args.preferences:
    count = reviews.write_preferences(args.directory, args.preferences)
    console.print(Text(f"{count} preferences in {args.preferences}"))
  for part in summary(record, args.samples, args.domain):
    console.print(part)
  from ptjax.report.html import write_report

  report = write_report(args.directory).resolve()
  for part in review_queue(reviews.read_queue(args.directory)):
    console.print(part)
  console.print(Text(f"report  {report}"), soft_wrap=True)
  if args.open:
    webbrowser.open(report.as_uri())
  return 0


def summary(record, samples: int, domain: str | None = None) -> Iterator[RenderableType]:
  """The parts of the view of a `report.run.Run`, in order; those without data are left out."""
  steps = record.metrics[-1]["step"] if record.metrics else "none"
  yield Text(f"run {record.name}, last recorded step: {steps}", style="bold")
  if record.missing:
    yield Text(f"not there: {', '.join(record.missing)}", style="yellow")
  if record.evals:
    yield pass_rates(record)
  if record.heldout:
    yield heldout_table(record)
  if record.metrics:
    yield metrics_table(record)
  if record.trajectories:
    yield trajectories_table(record)
  for name in [domain] if domain else record.domains:
    records = [r for r in record.trajectories if r["domain"] == name]
    yield from (panel(r) for r in records[len(records) - min(samples, len(records)) :])


def judge(directory: str, verdict: str, annotator: str) -> None:
  """Records a verdict written as ID=good or ID=bad; raises ValueError for another."""
  from ptjax.data import reviews

  key, equals, said = verdict.partition("=")
  if not equals or said not in ("good", "bad"):
    raise ValueError(f"--verdict {verdict!r} must be ID=good or ID=bad")
  if not annotator:
    raise ValueError("--verdict needs --annotator NAME")
  reviews.add_verdict(directory, key, good=said == "good", annotator=annotator)


def review_queue(queue) -> Iterator[RenderableType]:
  """The answers that nobody has judged yet, the oldest first, and how many were."""
  open_ = [record for record in queue if record["verdict"] is None]
  if queue:
    judged = len(queue) - len(open_)
    yield Text(f"review queue: {len(open_)} to judge, {judged} judged", style="bold")
  for record in open_[:REVIEWS_SHOWN]:
    question = "\n\n".join(message["content"] for message in record["messages"])
    body = Group(Text(printable(question), style="dim"), Text(printable(record["response"])))
    title = f"{record['id']}: {record['domain']}, {record['why']}, oddness {record['oddness']:.2f}"
    yield Panel(body, title=Text(title), title_align="left")


def pass_rates(record) -> Table:
  table = Table("domain", "before", "after", title="held-out pass rate, 95% Wilson interval")
  before, after = record.pass_rates("before"), record.pass_rates("after")
  for domain in dict.fromkeys([*before, *after]):
    table.add_row(domain, *(_rate(rates.get(domain)) for rates in (before, after)))
  return table


def heldout_table(record) -> Table:
  """What a supervised run measured on its held-out examples, a column each time."""
  table = Table("metric", title="held-out examples")
  for row in record.heldout:
    table.add_column(row["when"], justify="right")
  names = {name for row in record.heldout for name in row} - {"when", "step"}
  for name in sorted(names):
    values = (row.get(name) for row in record.heldout)
    table.add_row(name, *("-" if value is None else f"{value:.4g}" for value in values))
  return table


def _rate(rate) -> str:
  if rate is None:
    return "-"
  low, high = rate.interval
  return f"{rate.rate:.1%}  ({low:.1%} to {high:.1%}, n={rate.total})"


def metrics_table(record) -> Table:
  table = Table("metric", title="metrics")
  for heading in ("first", "last", "min", "max"):
    table.add_column(heading, justify="right")
  names = {name for row in record.metrics for name in row} - {"step"}
  if len(record.domains) > DOMAINS_SHOWN:  # the quantiles over them stay
    names -= {n for n in names for d in record.domains if _is_of(n, d)}
  for name in sorted(names):
    values = record.series(name).finite
    if values:
      shown = (values[0], values[-1], min(values), max(values))
      table.add_row(name, *(f"{value:.4g}" for value in shown))
  return table


def _is_of(metric: str, domain: str) -> bool:
  """Whether a metric is of one domain alone."""
  return metric in (f"pass/{domain}", f"reward/{domain}") or metric.startswith(f"reward/{domain}/")


def trajectories_table(record) -> Table:
  """Counts by phase and domain; a reward that was not given counts nowhere in its mean."""
  table = Table("phase", "domain", title="trajectories")
  for heading in ("count", "passed", "mean reward", "not scored"):
    table.add_column(heading, justify="right")
  groups = collections.defaultdict(list)
  for row in record.trajectories:
    groups[row["phase"], row["domain"]].append(row)
  for (phase, domain), rows in groups.items():
    scored = [r for r in rows if r.get("outcome", "scored") == "scored"]
    rewards = [r["reward"] for r in rows if r.get("reward") is not None]
    passed = f"{sum(r['passed'] for r in scored) / len(scored):.1%}" if scored else "-"
    mean = statistics.fmean(rewards) if rewards else math.nan
    table.add_row(
      phase, domain, f"{len(rows)}", passed, f"{mean:.3f}", f"{len(rows) - len(scored)}"
    )
  return table


def panel(row) -> Panel:
  reward = row.get("reward")
  verdict = "passed" if row["passed"] else "failed"
  outcome = row.get("outcome", "scored")
  title = ", ".join(
    [
      f"{row['domain']}, {row['phase']}, step {row['step']}",
      verdict if outcome == "scored" else outcome,
      "no reward" if reward is None else f"reward {reward:.2f}",
    ]
  )
  prompt, response = Text(printable(row["prompt"]), style="dim"), Text(printable(row["response"]))
  return Panel(Group(prompt, response), title=Text(title), title_align="left")


def printable(text: str) -> str:
  """What a model wrote, cut, and without the control codes that would steer the terminal."""
  clean = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
  if len(clean) <= CHARACTERS_SHOWN:
    return clean
  return f"{clean[:CHARACTERS_SHOWN]}\n[{len(clean) - CHARACTERS_SHOWN:,} characters more]"
