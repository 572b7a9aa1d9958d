"""Plots and tables of the experiments of this directory, from the workdirs of their runs.

  python -m configs.papers.plots length_bias

reads runs/papers/length_bias/*, writes docs/papers/length_bias.png, and prints the table of its
arms: mean over the seeds, and the least and the largest of them. `dpo` reads runs/papers/dpo.json.
"""

import argparse
import collections
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

RUNS, PLOTS = Path("runs/papers"), Path("docs/papers")
SMOOTH = 5  # steps averaged in a curve
LAST = 10  # steps averaged in a table

Curve = np.ndarray  # f64, one a step; nan where the step has no value


@dataclasses.dataclass(frozen=True)
class Panel:
  """One axes: what is drawn against the steps of a run, or against another value."""

  title: str
  value: Callable[[Sequence[dict]], Curve]
  against: Callable[[Sequence[dict]], Curve] | None = None
  against_title: str = "step"


def metric(key: str) -> Callable[[Sequence[dict]], Curve]:
  """The curve of one key of metrics.jsonl."""
  return lambda records: np.asarray(
    [np.nan if r.get(key) is None else r[key] for r in records], np.float64
  )


def kl_of_answers(records: Sequence[dict]) -> Curve:
  """KL(policy || start) of a whole answer, nats: the mean a token times the mean length."""
  return metric("policy/kl")(records) * metric("length/mean")(records)


def _against_kl(title: str, key: str) -> Panel:
  return Panel(title, metric(key), kl_of_answers, "KL to the start, nats an answer")


PASS = Panel("pass rate", metric("pass/addends"))
ENTROPY = Panel("entropy, nats a token", metric("policy/entropy"))

FIGURES: dict[str, list[Panel]] = {
  "length_bias": [
    Panel("length of wrong answers, tokens", metric("length/failed")),
    Panel("length of right answers, tokens", metric("length/passed")),
    PASS,
  ],
  "off_policy": [
    PASS,
    ENTROPY,
    Panel("share of tokens clipped above", metric("policy/clip_frac_high")),
  ],
  "mismatch": [
    Panel("pass rate of the sampler", metric("pass/addends")),
    ENTROPY,
    Panel("KL(sampler || trainer), nats a token", metric("mismatch/kl")),
  ],
  "value_pretraining": [
    PASS,
    Panel("explained variance of the critic", metric("value/explained_variance")),
    Panel("length, tokens", metric("length/mean")),
  ],
  "overoptimisation": [
    _against_kl("proxy reward", "reward/addends/preference"),
    _against_kl("gold reward", "reward/addends/answer"),
  ],
}


def read_jsonl(path: Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def read_arms(directory: Path) -> dict[str, list[list[dict]]]:
  """The records of the finished runs by the name of the experiment, an entry a seed.

  Steps in which only the critic learned are left out: arms are compared by updates of the policy.
  """
  arms: dict[str, list[list[dict]]] = collections.defaultdict(list)
  for config in sorted(directory.glob("*/config.json")):
    experiment = json.loads(config.read_text())
    records = read_jsonl(config.with_name("metrics.jsonl"))
    if len(records) < experiment["rl"]["num_steps"]:
      raise ValueError(f"{config.parent} has {len(records)} steps; run the sweep to its end first")
    warmup = (experiment.get("critic") or {}).get("warmup_steps", 0)
    arms[experiment["name"]].append(records[warmup:])
  if not arms:
    raise ValueError(f"{directory} holds no runs; its configuration's docstring has the command")
  return arms


def smooth(curve: Curve, width: int = SMOOTH) -> Curve:
  """Mean over a window that ends at each step; steps without a value do not count."""
  windows = [curve[max(0, i + 1 - width) : i + 1] for i in range(len(curve))]
  return np.asarray([mean(w) for w in windows])


def mean(values: Curve) -> float:
  present = values[~np.isnan(values)]
  return float(present.mean()) if len(present) else float("nan")


def draw(name: str, arms: dict[str, list[list[dict]]], path: Path) -> None:
  """One row of panels: the mean over the seeds as a line, their range as a band.

  Against another value than steps every seed is a line of its own.
  """
  panels = FIGURES[name]
  figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 2.9), squeeze=False)
  for axis, panel in zip(axes[0], panels, strict=True):
    for number, (arm, runs) in enumerate(arms.items()):
      curves = np.stack([smooth(panel.value(records)) for records in runs])
      color = f"C{number}"
      if panel.against is not None:
        for i, (curve, records) in enumerate(zip(curves, runs, strict=True)):
          x = smooth(panel.against(records))
          axis.plot(x, curve, color=color, linewidth=1.2, label=None if i else arm)
        continue
      steps = np.arange(curves.shape[1])
      axis.plot(steps, curves.mean(0), label=arm, linewidth=1.4, color=color)
      axis.fill_between(steps, curves.min(0), curves.max(0), alpha=0.15, color=color)
    _dress(axis, panel.title, panel.against_title)
  labels = axes[0][0].get_legend_handles_labels()
  figure.legend(*labels, loc="upper center", ncol=len(arms), fontsize=8, frameon=False)
  _save(figure, path, top=0.92)


def draw_pass_rates(results: Sequence[dict], path: Path) -> None:
  """Pass rate of each arm: every seed a point, the mean a bar."""
  figure, axis = plt.subplots(figsize=(3.4, 2.9))
  arms = list(dict.fromkeys(r["arm"] for r in results))
  for x, arm in enumerate(arms):
    rates = [r["passed"] / r["total"] for r in results if r["arm"] == arm]
    axis.bar(x, np.mean(rates), width=0.6, alpha=0.35, color=f"C{x}")
    axis.plot([x] * len(rates), rates, "o", color=f"C{x}", markersize=4)
  axis.set_xticks(range(len(arms)), arms)
  axis.set_ylim(0, 1)
  _dress(axis, "held-out pass rate", "")
  _save(figure, path)


def _dress(axis, title: str, x_title: str) -> None:
  axis.set_title(title, fontsize=9)
  axis.set_xlabel(x_title, fontsize=8)
  axis.tick_params(labelsize=8)
  axis.spines[["top", "right"]].set_visible(False)


def _save(figure, path: Path, top: float = 1.0) -> None:
  figure.tight_layout(rect=(0, 0, 1, top))
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=60)
  plt.close(figure)


def table(name: str, arms: dict[str, list[list[dict]]]) -> str:
  """Markdown: the mean over the seeds, and their range, of what each panel shows in the last steps;
  in the last column of the pass rate over the whole run."""
  panels = FIGURES[name]
  rows = [["arm", *(p.title for p in panels), "pass rate, all steps"], ["---"] * (len(panels) + 2)]
  for arm, runs in arms.items():
    ends = [[mean(panel.value(records)[-LAST:]) for records in runs] for panel in panels]
    whole = [mean(PASS.value(records)) for records in runs]
    rows.append([arm, *(f"{np.mean(v):.3g} [{min(v):.3g}, {max(v):.3g}]" for v in (*ends, whole))])
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("figure", choices=[*FIGURES, "dpo"])
  parser.add_argument("--runs", type=Path, default=RUNS, help="parent of the sweeps' workdirs")
  parser.add_argument("--to", type=Path, default=PLOTS, help="directory of the plot")
  args = parser.parse_args()
  path = args.to / f"{args.figure}.png"
  if args.figure == "dpo":
    draw_pass_rates(json.loads((args.runs / "dpo.json").read_text()), path)
  else:
    arms = read_arms(args.runs / args.figure)
    draw(args.figure, arms, path)
    print(table(args.figure, arms))
  print(path)


if __name__ == "__main__":
  main()
