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
import re
from collections.abc import Iterator, Mapping
from typing import Any

# An identifier of the list at spdx.org, and how they combine. Whether it is on the list, and
# allowed in a run, is for `provenance` to say.
_SPDX_ID = r"[A-Za-z0-9][A-Za-z0-9.+-]*"
_SPDX = re.compile(rf"\(*{_SPDX_ID}\)*( (AND|OR|WITH) \(*{_SPDX_ID}\)*)*")

_TEXTS = ("annotator", "license", "source", "domain")
_KNOWN = {"messages", "chosen", "rejected", "margin", *_TEXTS}


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


def read_pairs(path: str | pathlib.Path, *, unpaired: bool = False) -> list[AnnotatedPair]:
  """All comparisons of a file.

  Args:
    path: JSONL.
    unpaired: allow lines with one answer only.

  Raises:
    ValueError: a line that breaks the schema; the message names file, line, field and fix.
  """
  return [
    _parse(record, f"{path}, line {number}", unpaired) for number, record in jsonl_records(path)
  ]


def _parse(record: dict[str, Any], where: str, unpaired: bool) -> AnnotatedPair:
  if unknown := sorted(record.keys() - _KNOWN):
    raise ValueError(f"{where}: unknown field {unknown[0]!r}; the schema has {sorted(_KNOWN)}")
  for name in _TEXTS:
    if not isinstance(record.get(name), str) or not record[name].strip():
      raise ValueError(
        f"{where}: {name} must be a text that is not empty, not {record.get(name)!r}"
      )
  if not _SPDX.fullmatch(record["license"]):
    raise ValueError(
      f"{where}: license {record['license']!r} is no SPDX expression; write for example CC-BY-4.0"
    )
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
    **{name: record[name] for name in _TEXTS},
  )
