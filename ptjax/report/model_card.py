"""The README of an exported model: what it began from, how and on what it was trained, and gain.

The metadata block is that of Hugging Face's model cards. It names no licence: that is whose of the
starting model, which is not known here.
"""

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.report.run import PassRate, Run, pooled

# Settings worth a row, of whatever kind of run has them.
SETTINGS = (
  "seed",
  "rl.advantages",
  "rl.num_steps",
  "rl.prompts_per_step",
  "rl.group_size",
  "rl.aggregation",
  "rl.objective.loss",
  "rl.objective.kl_coef",
  "policy.max_new_tokens",
  "policy.sampling.temperature",
  "fit.num_steps",
  "fit.batch_size",
  "optimizer.learning_rate",
  "critic.optimizer.learning_rate",
  "model.lora.rank",
)


def model_card(
  title: str,
  source: str,
  content_hash: str,
  *,
  step: int | None = None,
  run: Run | None = None,
  manifest: Mapping[str, Any] | None = None,
) -> str:
  """The text, in Markdown.

  Args:
    title: name of the model.
    source: the model that it began from, or was converted from.
    content_hash: sha256 of that model's weights.
    step: of the checkpoint; None for a model that was not trained here.
    run: files of its run; None for a model that was not trained here.
    manifest: `manifest.json` of its run.
  """
  version = importlib.metadata.version("ptjax")
  trained = run is not None
  parts = [
    _metadata(trained),
    f"# {_plain(title)}",
    f"Trained by ptjax {version} from `{source}`, step {step}."
    if trained
    else f"Exported by ptjax {version} from `{source}`.",
    f"sha256 of that model's weights: `{content_hash}`.",
  ]
  if run is not None:
    parts += [*_gain(run), *_settings(run.config), *_sources(manifest or {})]
    parts.append(
      "`run_config.json` is the whole configuration, `manifest.json` lists data, domains and "
      "licences with their hashes."
    )
  return "\n\n".join(parts) + "\n"


def _metadata(trained: bool) -> str:
  tags = ["ptjax", "post-training"] if trained else ["ptjax"]
  lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags:"]
  return "\n".join(["---", *lines, *(f"- {tag}" for tag in tags), "---"])


def _gain(run: Run) -> list[str]:
  """Held-out pass rates, where they were measured."""
  before, after = run.pass_rates("before"), run.pass_rates("after")
  names = [name for name in run.domains if name in before or name in after]
  if not names:
    return []
  rows = [[name, _rate(before.get(name)), _rate(after.get(name))] for name in names]
  if len(names) > 1 and set(before) == set(after):
    rows.append(["all", _rate(pooled(before.values())), _rate(pooled(after.values()))])
  head = ["domain", "before", "after"]
  return ["## Held-out tasks passed", _table(head, rows), "In brackets the 95% Wilson interval."]


def _rate(rate: PassRate | None) -> str:
  if rate is None:
    return "not measured"
  low, high = rate.interval
  return f"{rate.rate:.1%} [{low:.1%}, {high:.1%}], {rate.passed} of {rate.total}"


def _settings(config: Mapping[str, Any]) -> list[str]:
  rows = [
    [f"`{name}`", str(value)] for name in SETTINGS if (value := _get(config, name)) is not None
  ]
  return ["## Training", _table(["setting", "value"], rows)] if rows else []


def _get(config: Mapping[str, Any], name: str) -> Any:
  value: Any = config
  for key in name.split("."):
    value = value.get(key) if isinstance(value, Mapping) else None
  return value


def _sources(manifest: Mapping[str, Any]) -> list[str]:
  """Domains and data files, with licence and origin."""
  rows = [[d["domain"], d["license"], d["origin"]] for d in manifest.get("domains", ())]
  data = manifest.get("data", ())
  if isinstance(data, Mapping):  # annotated items: counts by licence and by origin
    rows.append(["annotated items", _counts(data["license"]), _counts(data["source"])])
  else:
    rows += [[d["source"], d["license"], d["origin"]] for d in data]
  return ["## Data", _table(["source", "licence", "origin"], rows)] if rows else []


def _counts(by_name: Mapping[str, int]) -> str:
  return ", ".join(f"{name} ({count})" for name, count in by_name.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
  """Text that ends no cell, begins no line and makes no tag."""
  return re.sub(r"([|<\\])", r"\\\1", " ".join(text.split()))
