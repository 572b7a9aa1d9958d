"""Files of records as random-access sources: JSON lines, Parquet, ArrayRecord.

A source knows how many records it has and reads any of them, which is what Grain's shuffling,
mixing, sharding and resuming rest on. Each is picklable: it opens its files where it is used.
"""

import functools
import json
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Record = dict[str, Any]


class RandomAccess(Protocol):
  """Records by number."""

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...


class _Files:
  """Files in the order given; pickling drops what was opened."""

  def __init__(self, paths: Sequence[str]):
    if not paths:
      raise ValueError(f"a source of {type(self).__name__} needs at least one file")
    for path in paths:
      if not pathlib.Path(path).is_file():
        raise ValueError(f"{path} is no file; give the paths of the data files")
    self.paths = tuple(map(str, paths))

  def __getstate__(self) -> dict[str, Any]:
    return {"paths": self.paths}

  def __repr__(self) -> str:  # Grain prints it into its checkpoints
    return f"{type(self).__name__}({list(self.paths)})"

  @functools.cached_property
  def _ends(self) -> np.ndarray:
    """Of each file the number of records up to its end."""
    return np.cumsum([self._count(i) for i in range(len(self.paths))])

  def __len__(self) -> int:
    return int(self._ends[-1])

  def _locate(self, index: int) -> tuple[int, int]:
    """(file, number of the record in it)."""
    if not 0 <= index < len(self):
      raise IndexError(f"record {index} of {len(self)}")
    file = int(np.searchsorted(self._ends, index, side="right"))
    return file, index - (int(self._ends[file - 1]) if file else 0)

  def _count(self, file: int) -> int:
    raise NotImplementedError


class JsonLines(_Files):
  """One JSON object a line, UTF-8. Lines end at "\\n" alone, and empty lines hold no record.

  Only the offsets of the lines are kept in memory, 8 bytes each.

  Raises:
    ValueError: a missing file; when read, a line that is no JSON object, by file and number.
  """

  def _count(self, file: int) -> int:
    return len(self._lines[file][0])

  @functools.cached_property
  def _lines(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each file (offsets, line numbers from 1) of the lines that are not empty."""
    return [_line_offsets(path) for path in self.paths]

  def __getitem__(self, index: int) -> Record:
    file, number = self._locate(int(index))
    offsets, lines = self._lines[file]
    path = self.paths[file]
    with pathlib.Path(path).open("rb") as stream:
      stream.seek(int(offsets[number]))
      text = stream.readline()
    try:
      record = json.loads(text)
    except ValueError as error:
      raise ValueError(f"{path}, line {lines[number]} is not JSON: {error}") from error
    if not isinstance(record, dict):
      raise ValueError(f"{path}, line {lines[number]} is no JSON object: {text[:60]!r}")
    return record


def _line_offsets(path: str) -> tuple[np.ndarray, np.ndarray]:
  offsets, numbers, offset = [], [], 0
  with pathlib.Path(path).open("rb") as stream:
    for number, line in enumerate(stream, start=1):
      if line.strip():
        offsets.append(offset)
        numbers.append(number)
      offset += len(line)
  return np.asarray(offsets, np.int64), np.asarray(numbers, np.int64)


class Parquet(_Files):
  """Rows of Parquet files as records; the row groups that were read last stay in memory.

  A record costs the reading of its row group: for shuffled reading of large files write small
  row groups, or convert to another format. Needs pyarrow (the extra `parquet`).
  """

  def _count(self, file: int) -> int:
    return int(self._group_ends[file][-1]) if len(self._group_ends[file]) else 0

  @functools.cached_property
  def _readers(self) -> list[Any]:
    try:
      import pyarrow.parquet
    except ImportError as error:
      raise ValueError("Parquet files need pyarrow; pip install 'ptjax[parquet]'") from error
    return [pyarrow.parquet.ParquetFile(path) for path in self.paths]

  @functools.cached_property
  def _group_ends(self) -> list[np.ndarray]:
    """Of each file the number of rows up to the end of each row group."""
    metas = [reader.metadata for reader in self._readers]
    return [
      np.cumsum([m.row_group(i).num_rows for i in range(m.num_row_groups)], dtype=np.int64)
      for m in metas
    ]

  @functools.cached_property
  def _group(self) -> Callable[[int, int], Any]:
    lock = threading.Lock()  # a reader seeks in its file, and threads share it

    @functools.lru_cache(maxsize=4)
    def read(file: int, group: int) -> Any:
      with lock:
        return self._readers[file].read_row_group(group)

    return read

  def __getitem__(self, index: int) -> Record:
    file, row = self._locate(int(index))
    ends = self._group_ends[file]
    group = int(np.searchsorted(ends, row, side="right"))
    first = int(ends[group - 1]) if group else 0
    return self._group(file, group).slice(row - first, 1).to_pylist()[0]


class ArrayRecord(_Files):
  """ArrayRecord files whose records are JSON objects, or what `decode` makes of their bytes."""

  def __init__(self, paths: Sequence[str], decode: Callable[[bytes], Record] = json.loads):
    super().__init__(paths)
    self.decode = decode

  def __getstate__(self) -> dict[str, Any]:
    return {"paths": self.paths, "decode": self.decode}

  @functools.cached_property
  def _reader(self) -> Any:
    import grain

    return grain.sources.ArrayRecordDataSource(list(self.paths))

  def __len__(self) -> int:
    return len(self._reader)

  def __getitem__(self, index: int) -> Record:
    if not 0 <= index < len(self):
      raise IndexError(f"record {index} of {len(self)}")
    data = self._reader[int(index)]
    try:
      return self.decode(data)
    except ValueError as error:
      raise ValueError(f"{self!r}, record {index}: {error}") from error


FORMATS: dict[str, Callable[[Sequence[str]], RandomAccess]] = {
  ".jsonl": JsonLines,
  ".parquet": Parquet,
  ".array_record": ArrayRecord,
  ".arrayrecord": ArrayRecord,
}


def open_files(paths: Sequence[str]) -> RandomAccess:
  """The source for files of one format, told by their suffix.

  Raises:
    ValueError: no files, a file that is missing, an unknown suffix, or several formats.
  """
  suffixes = sorted({pathlib.Path(path).suffix for path in paths})
  if len(suffixes) != 1 or suffixes[0] not in FORMATS:
    raise ValueError(f"files with suffixes {suffixes}: give one of {', '.join(FORMATS)}")
  return FORMATS[suffixes[0]](paths)
