"""The review queue of a run: answers that a person judges, and their verdicts as preferences.

`review.jsonl` of a workdir holds the answers, `verdicts.jsonl` what people said of them, a line
each: {"id": "19.0", "good": false, "annotator": "a17"}. The last verdict on an answer counts.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from ptjax.core.metrics import append_jsonl, read_jsonl, write_jsonl

QUEUE, VERDICTS = "review.jsonl", "verdicts.jsonl"
SOURCE = "review queue of a ptjax run"


def read_queue(workdir: str | pathlib.Path) -> list[dict[str, Any]]:
  """The answers, each with its `verdict` ({"good", "annotator"}) or None."""
  queue, verdicts = (_read(pathlib.Path(workdir) / name) for name in (QUEUE, VERDICTS))
  said = {v["id"]: {"good": v["good"], "annotator": v["annotator"]} for v in verdicts}
  return [{**record, "verdict": said.get(record["id"])} for record in queue]


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
  return read_jsonl(path) if path.exists() else []


def add_verdict(workdir: str | pathlib.Path, key: str, *, good: bool, annotator: str) -> None:
  """Records what a person says of an answer.

  Raises:
    ValueError: no such answer in the queue, or nobody who says it.
  """
  known = [record["id"] for record in read_queue(workdir)]
  if key not in known:
    raise ValueError(f"no answer {key!r} in the review queue; it has {', '.join(known) or 'none'}")
  if not annotator:
    raise ValueError("a verdict needs an annotator, who judged")
  append_jsonl(
    pathlib.Path(workdir) / VERDICTS, [{"id": key, "good": good, "annotator": annotator}]
  )


def to_preferences(queue: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """The judged answers in the schema of `data.annotated_pairs`.

  A good and a bad answer to one question are a pair; what is left is a judgement of one answer,
  with `chosen` or `rejected` alone (`prefer` with KTO).
  """
  by_question: dict[str, tuple[list, list]] = {}
  for record in queue:
    if record["verdict"] is not None:
      question = json.dumps([record["domain"], record["messages"]])
      good, bad = by_question.setdefault(question, ([], []))
      (good if record["verdict"]["good"] else bad).append(record)
  preferences = []
  for good, bad in by_question.values():
    paired = min(len(good), len(bad))
    preferences += [
      _preference(g, chosen=g["response"], rejected=b["response"])
      for g, b in zip(good, bad, strict=False)
    ]
    preferences += [_preference(g, chosen=g["response"]) for g in good[paired:]]
    preferences += [_preference(b, rejected=b["response"]) for b in bad[paired:]]
  return preferences


def _preference(record: dict[str, Any], **answers: str) -> dict[str, Any]:
  return {
    "messages": record["messages"],
    **answers,
    "annotator": record["verdict"]["annotator"],
    "license": record["license"],
    "source": SOURCE,
    "domain": record["domain"],
  }


def write_preferences(workdir: str | pathlib.Path, path: str | pathlib.Path) -> int:
  """Writes the judged answers of a workdir for `prefer`; returns how many lines.

  Raises ValueError where none is judged yet.
  """
  preferences = to_preferences(read_queue(workdir))
  if not preferences:
    raise ValueError(f"no verdict in {workdir} yet; give one with `view DIR --verdict ID=good`")
  write_jsonl(path, preferences)
  return len(preferences)
