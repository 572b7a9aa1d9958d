"""Which trajectories the report shows, and how: the same tasks before and after, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.report.markup import Markup, el, join
from ptjax.report.run import Run

TASKS_PER_DOMAIN = 3
DOMAINS_SHOWN = 8
CHARACTERS_SHOWN = 4000

Record = Mapping[str, Any]


def paired(run: Run, domain: str) -> list[tuple[Record | None, Record | None]]:
  """(before, after) of the domain's first tasks in file order, those seen in both phases first.

  The order of the file, not the reward, decides: nothing is picked for its looks.
  """
  phases: dict[str, dict[str, Record]] = {"before": {}, "after": {}}
  for record in run.trajectories:
    if record["domain"] == domain and record["phase"] in phases:
      phases[record["phase"]].setdefault(record["prompt"], record)
  before, after = phases["before"], phases["after"]
  prompts = [prompt for prompt in before if prompt in after]
  prompts += [prompt for prompt in [*before, *after] if prompt not in prompts]
  return [(before.get(prompt), after.get(prompt)) for prompt in prompts[:TASKS_PER_DOMAIN]]


def clipped(text: str) -> str:
  if len(text) <= CHARACTERS_SHOWN:
    return text
  return f"{text[:CHARACTERS_SHOWN]}\n[{len(text) - CHARACTERS_SHOWN:,} characters more]"


def verdict(record: Record) -> Markup:
  """Passed or failed for a scored episode, else the outcome in words."""
  outcome = record.get("outcome", "scored")
  if outcome != "scored":
    return el("span", outcome.replace("_", " "), cls="fail")
  return el("span", "passed", cls="pass") if record["passed"] else el("span", "failed", cls="fail")


def side(title: str, record: Record | None) -> Markup:
  """One response under its heading: verdict, reward, and the nodes of the reward tree."""
  if record is None:
    return el("div", el("h3", el("b", title)), el("p", "not recorded", cls="muted"), cls="side")
  reward = record.get("reward")
  facts = [
    verdict(record),
    el("span", f"reward {reward:.2f}" if reward is not None else "no reward"),
  ]
  if record.get("finish_reason") == "length":
    facts.append(el("span", "cut at the length limit"))
  nodes = {path: value for path, value in (record.get("rewards") or {}).items() if path}
  parts = ", ".join(
    f"{path} {'none' if value is None else format(value, '.2f')}" for path, value in nodes.items()
  )
  return el(
    "div",
    el("h3", el("b", title), *facts),
    el("pre", clipped(record["response"])),
    el("p", parts, cls="muted") if parts else "",
    cls="side",
  )


def before_and_after(run: Run) -> Markup:
  """The section of held-out samples, by domain."""
  blocks = []
  for domain in run.domains[:DOMAINS_SHOWN]:
    for before, after in paired(run, domain):
      prompt = next(record for record in (before, after) if record)["prompt"]
      blocks.append(
        el(
          "article",
          el("h3", domain),
          el("pre", clipped(prompt), cls="prompt"),
          el("div", side("Before", before), side("After", after), cls="sides"),
          cls="task",
        )
      )
  if not blocks:
    return el("p", "No held-out trajectory was recorded.", cls="muted")
  hidden = len(run.domains) - DOMAINS_SHOWN
  more = f" {hidden} more domains are not shown." if hidden > 0 else ""
  note = "The first tasks of every domain in the order of the file, not chosen by result." + more
  return join(el("p", note, cls="muted"), *blocks)


def during_training(records: Sequence[Record]) -> Markup:
  """The last training episodes, folded away."""
  last = [record for record in records if record["phase"] == "train"][-TASKS_PER_DOMAIN:]
  if not last:
    return Markup()
  blocks = [
    el(
      "article",
      el("h3", f"{record['domain']}, step {record['step']}"),
      el("pre", clipped(record["prompt"]), cls="prompt"),
      side("During training", record),
      cls="task",
    )
    for record in last
  ]
  return el("details", el("summary", f"Latest training episodes on file ({len(last)})"), *blocks)
