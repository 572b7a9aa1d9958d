"""Preferences of annotators, as JSONL: one comparison a line, its origin with it.

  {"messages": [{"role": "user", "content": "..."}],   the conversation before the answer
   "chosen": "...", "rejected": "...",                  the answers, the better one first
   "annotator": "a17",                                  who judged: a person or a program
   "license": "CC-BY-4.0",                              SPDX expression of the pair's licence
   "source": "...",                                     where it comes from
   "domain": "code",
   "margin": 1.0}                                       how much better; may be left out (0)

With `unpaired` one of the answers may be left out: a judgement of a single answer (KTO).
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ptjax.data.provenance import PERMISSIVE, check_license

ORIGIN = ("annotator", "license", "source", "domain")
_KNOWN = {"messages", "chosen", "rejected", "margin", *ORIGIN}


@dataclasses.dataclass(frozen=True)
class AnnotatedPair:
  """One comparison; the fields are those of the schema above.

  Attributes:
    messages: the conversation before the answer.
    chosen: the better answer; None in a judgement of a single, bad answer.
    rejected: the worse one; None in a judgement of a single, good answer.
    annotator, license, source, domain: the origin.
    margin: how much better the chosen one is, >= 0, in units of the reward.
  """

  messages: tuple[Mapping[str, Any], ...]
  chosen: str | None
  rejected: str | None
  annotator: str
  license: str
  source: str
  domain: str
  margin: float = 0.0


def jsonl_records(path: str | pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
  """(line number from 1, record) of each line that is not empty; lines end in "\\n" alone.

  Raises:
    ValueError: a line is no JSON object; the message names file and line.
  """
  for number, line in enumerate(pathlib.Path(path).read_bytes().split(b"\n"), start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except ValueError as error:
      raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(record, dict):
      raise ValueError(f"{path}, line {number} is not a JSON object: {line[:80]!r}")
    yield number, record


def check_messages(messages: Any, where: str) -> tuple[Mapping[str, Any], ...]:
  """The messages as a tuple; raises ValueError where they are no list of role and content."""
  good = isinstance(messages, list) and all(
    isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
    for m in messages
  )
  if not good or not messages:
    raise ValueError(
      f'{where}: needs a list of {{"role": ..., "content": ...}}, not {str(messages)[:80]}'
    )
  return tuple(messages)


def read_pairs(
  path: str | pathlib.Path, *, licenses: Sequence[str] = PERMISSIVE, unpaired: bool = False
) -> list[AnnotatedPair]:
  """All comparisons of a file.

  Args:
    path: JSONL.
    licenses: SPDX identifiers that may be used.
    unpaired: allow lines with one answer only.

  Raises:
    ValueError: a line that breaks the schema, or whose licence may not be used; the message
      names file, line, field and fix.
  """
  return [
    _parse(record, f"{path}, line {number}", licenses, unpaired)
    for number, record in jsonl_records(path)
  ]


def origin_of(record: dict[str, Any], where: str, licenses: Sequence[str]) -> dict[str, str]:
  """Annotator, licence, source and domain of a record.

  Raises:
    ValueError: one lacks, or the licence may not be used; the message begins with `where`.
  """
  for name in ORIGIN:
    text = record.get(name)
    if not isinstance(text, str) or not text.strip():
      raise ValueError(f"{where}: {name} must be a text that is not empty, not {text!r}")
  try:
    check_license(record["source"], record["license"], licenses)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from error
  return {name: record[name] for name in ORIGIN}


def _parse(
  record: dict[str, Any], where: str, licenses: Sequence[str], unpaired: bool
) -> AnnotatedPair:
  if unknown := sorted(record.keys() - _KNOWN):
    raise ValueError(f"{where}: unknown field {unknown[0]!r}; the schema has {sorted(_KNOWN)}")
  origin = origin_of(record, where, licenses)
  answers = [record.get("chosen"), record.get("rejected")]
  for name, answer in zip(("chosen", "rejected"), answers, strict=True):
    if not (isinstance(answer, str) or (answer is None and unpaired)):
      raise ValueError(f"{where}: {name} must be a text, not {answer!r}; only KTO does without it")
  if answers == [None, None]:
    raise ValueError(f"{where}: neither chosen nor rejected is given")
  if answers[0] == answers[1]:
    raise ValueError(f"{where}: chosen and rejected are the same text; leave ties out")
  margin = record.get("margin", 0.0)
  if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin < math.inf:
    raise ValueError(f"{where}: margin must be a number >= 0, not {margin!r}")
  return AnnotatedPair(
    messages=check_messages(record.get("messages"), f"{where}, messages"),
    chosen=answers[0],
    rejected=answers[1],
    margin=float(margin),
    **origin,
  )
