"""Judgements of the steps of an answer, as JSONL: what a process reward model learns from.

{"messages": [{"role": "user", "content": "..."}],
 "steps": ["2 + 2 = 4", "4 * 3 = 11"],     the answer is the steps, joined by newlines
 "labels": [1, 0],                          1 where the answer is right so far
 "annotator": "a17", "license": "CC-BY-4.0", "source": "...", "domain": "arithmetic"}
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ptjax.data.annotated_pairs import ORIGIN, check_messages, jsonl_records, origin_of
from ptjax.data.provenance import PERMISSIVE

SEPARATOR = "\n"
_KNOWN = {"messages", "steps", "labels", *ORIGIN}


@dataclasses.dataclass(frozen=True)
class AnnotatedSteps:
  """One answer, judged step by step; the fields are those of the schema above."""

  messages: tuple[Mapping[str, Any], ...]
  steps: tuple[str, ...]
  labels: tuple[bool, ...]
  annotator: str
  license: str
  source: str
  domain: str

  @property
  def answer(self) -> str:
    return SEPARATOR.join(self.steps)


def read_steps(
  path: str | pathlib.Path, *, licenses: Sequence[str] = PERMISSIVE
) -> list[AnnotatedSteps]:
  """All judged answers of a file.

  Raises:
    ValueError: a line that breaks the schema, or whose licence may not be used; the message
      names file, line, field and fix.
  """
  return [
    _parse(record, f"{path}, line {number}", licenses) for number, record in jsonl_records(path)
  ]


def _parse(record: dict[str, Any], where: str, licenses: Sequence[str]) -> AnnotatedSteps:
  if unknown := sorted(record.keys() - _KNOWN):
    raise ValueError(f"{where}: unknown field {unknown[0]!r}; the schema has {sorted(_KNOWN)}")
  steps, labels = record.get("steps"), record.get("labels")
  if not isinstance(steps, list) or not steps or not all(_is_step(s) for s in steps):
    raise ValueError(
      f"{where}: steps must be a list of texts, not empty and without newlines, not "
      f"{str(steps)[:80]}"
    )
  if not isinstance(labels, list) or not all(label in (0, 1) for label in labels):
    raise ValueError(f"{where}: labels must be a list of 0 and 1, not {str(labels)[:80]}")
  if len(steps) != len(labels):
    raise ValueError(f"{where}: {len(steps)} steps but {len(labels)} labels; give one for each")
  return AnnotatedSteps(
    messages=check_messages(record.get("messages"), f"{where}, messages"),
    steps=tuple(steps),
    labels=tuple(map(bool, labels)),
    **origin_of(record, where, licenses),
  )


def _is_step(value: Any) -> bool:
  return isinstance(value, str) and bool(value.strip()) and SEPARATOR not in value
