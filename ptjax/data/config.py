"""The data of a run as configuration: sources that declare where they come from, and a stream.

`open_data` checks licences and hashes before anything is read, keeps evaluation items out,
writes the run's manifest, and returns the mixture. The same configuration gives the same order.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import grain

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.conversations import Encode, Turns, TurnsApart
from ptjax.data.decontamination import (
  Decontaminated,
  DecontaminationConfig,
  EvaluationIndex,
  write_report,
)
from ptjax.data.packing import RowConfig
from ptjax.data.pipeline import Host, Part, RowStream, Stream, mix
from ptjax.data.provenance import (
  PERMISSIVE,
  Provenance,
  check_files,
  check_license,
  write_manifest,
)
from ptjax.data.sources import RandomAccess, Record, open_files


@dataclasses.dataclass(frozen=True)
class SourceConfig:
  """Files of one origin.

  Attributes:
    name: unique in the run.
    files: JSON lines, Parquet or ArrayRecord.
    license: SPDX expression of the data.
    origin: where it was got.
    sha256: of each file, in order.
    weight: share of the examples relative to the other sources; None in all of them makes it
      the number of records.
  """

  name: str
  files: tuple[str, ...]
  license: str = ""
  origin: str = ""
  sha256: tuple[str, ...] = ()
  weight: float | None = None


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Supervised data.

  Attributes:
    sources: what is mixed.
    epochs: passes over a source before the data ends; None for no end.
    shuffle: false keeps the order of the files.
    turns: train the assistant turns of a conversation together, or each by itself in its own
      example, for templates that render earlier turns differently.
    max_length: longer examples are dropped and counted; None keeps all.
    licenses: SPDX identifiers that this run may use.
    decontaminate: what to keep out; None for nothing.
  """

  sources: tuple[SourceConfig, ...]
  epochs: int | None = None
  shuffle: bool = True
  turns: Turns = "together"
  max_length: int | None = None
  licenses: tuple[str, ...] = PERMISSIVE
  decontaminate: DecontaminationConfig | None = None


@dataclasses.dataclass(frozen=True)
class OpenData:
  """Checked data in its global order.

  Attributes:
    records: see `mix`.
    fingerprint: tells this data apart: hashes, weights, seed, and all that decides the order.
    provenance: of each source.
  """

  records: grain.MapDataset
  fingerprint: str
  provenance: tuple[Provenance, ...]

  def stream(self, encode: Callable[[Record], Any], host: Host | None = None) -> Stream:
    """Examples, for batches that are packed step by step."""
    return Stream(self.records, encode, data=self.fingerprint, host=host)

  def row_stream(
    self, encode: Callable[[Record], Any], rows: RowConfig, host: Host | None = None
  ) -> RowStream:
    """Packed rows."""
    data = hashlib.sha256(f"{self.fingerprint} {rows}".encode()).hexdigest()
    return RowStream(self.records, encode, rows, data=data, host=host)


def open_data(config: DataConfig, workdir: pathlib.Path, seed: int) -> OpenData:
  """Checks and opens the sources of a run.

  Writes `manifest.json` (section "data"), and `decontamination.json` where evaluation items are
  kept out, into `workdir`.

  Raises:
    ValueError: a licence is undeclared or not allowed, an origin is missing, a file is missing
      or is not what was declared, or the mixture is impossible.
  """
  provenance = tuple(_provenance(s, config.licenses) for s in config.sources)
  sources = {s.name: open_files(s.files) for s in config.sources}
  dropped: list[list[int]] = []
  if config.decontaminate is not None:
    sources, dropped = _decontaminate(
      sources, config.decontaminate, workdir / "decontamination.json"
    )
  if config.turns == "apart":
    sources = {name: TurnsApart(records) for name, records in sources.items()}
  parts = [Part(s.name, sources[s.name], s.weight) for s in config.sources]
  records = mix(parts, seed=seed, epochs=config.epochs, shuffle=config.shuffle)
  manifest = [
    dataclasses.asdict(p) | {"examples": len(part.records), "weight": part.weight}
    for p, part in zip(provenance, parts, strict=True)
  ]
  write_manifest(workdir, "data", manifest)
  sizes = [
    [*p.files.values(), part.weight, len(part.records)]
    for p, part in zip(provenance, parts, strict=True)
  ]
  settings = [seed, config.epochs, config.shuffle, config.turns, config.max_length]
  order = [[s.name for s in config.sources], sizes, settings, dropped]
  return OpenData(records, hashlib.sha256(json.dumps(order).encode()).hexdigest(), provenance)


def encoder(config: DataConfig, chat: ChatTemplate) -> Encode:
  """What makes examples of the records."""
  return Encode(chat, config.turns, config.max_length)


def _provenance(source: SourceConfig, allowed: tuple[str, ...]) -> Provenance:
  canonical = check_license(source.name, source.license, allowed)
  if not source.origin:
    raise ValueError(f"source {source.name!r} declares no origin; say where the data is from")
  open_files(source.files)  # a missing file is told before a hash
  files = check_files(source.name, source.files, source.sha256)
  return Provenance(source.name, canonical, source.origin, files)


def _decontaminate(
  sources: dict[str, RandomAccess], config: DecontaminationConfig, report: pathlib.Path
) -> tuple[dict[str, RandomAccess], list[list[int]]]:
  """(what is left of the sources, the numbers of the records dropped from each)."""
  index = EvaluationIndex(config.n, config.min_words)
  for path in config.evaluation:
    items = open_files([path])
    index.add(path, (items[i] for i in range(len(items))))
  clean = {name: Decontaminated(records, index) for name, records in sources.items()}
  write_report(report, config, index, clean)
  return {**clean}, [list(source.dropped) for source in clean.values()]
