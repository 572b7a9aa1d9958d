"""Hugging Face model directories: JSON files and safetensors shards."""

import json
import mmap
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes  # registers bfloat16 with numpy, which safetensors needs
import numpy as np
import safetensors

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = {
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "BOOL": np.dtype(bool),
  "F16": np.dtype("<f2"),
  "F32": np.dtype("<f4"),
  "F64": np.dtype("<f8"),
  "I32": np.dtype("<i4"),
  "I64": np.dtype("<i8"),
}


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object from a file; ValueError with the path where there is none."""
  try:
    value = json.loads(path.read_text("utf-8"))
  except FileNotFoundError as error:
    raise ValueError(f"{path} is missing; the directory is no complete model") from error
  except ValueError as error:
    raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path} holds a {type(value).__name__}, expected a JSON object")
  return value


def weight_files(directory: pathlib.Path) -> dict[pathlib.Path, tuple[str, ...] | None]:
  """The safetensors files, in order, with the tensors the index puts in each.

  Returns:
    path -> names, or None for an unsharded file, whose own table is the only one.

  Raises:
    ValueError: no weights, or shards named by the index are missing.
  """
  if (directory / _INDEX).exists():
    shards: dict[pathlib.Path, list[str]] = {}
    for name, file in read_json(directory / _INDEX).get("weight_map", {}).items():
      if pathlib.PurePath(file).name != file:  # an index never reaches out of its directory
        raise ValueError(f"{directory / _INDEX}: {file!r} is not a plain file name")
      shards.setdefault(directory / file, []).append(name)
    missing = sorted(path.name for path in shards if not path.exists())
    if missing or not shards:
      raise ValueError(f"{directory}: shards {missing} of {_INDEX} are missing; download them")
    return {path: tuple(shards[path]) for path in sorted(shards)}
  if (directory / _SINGLE).exists():
    return {directory / _SINGLE: None}
  raise ValueError(f"{directory} holds neither {_SINGLE} nor {_INDEX}; convert to safetensors")


def _open_shards(directory: pathlib.Path) -> Iterator[tuple[Any, str]]:
  """Yields (open shard, tensor name) for every tensor; a damaged shard is a ValueError."""
  for path, names in weight_files(directory).items():
    yield from _open_shard(path, names)


def _open_shard(path: pathlib.Path, names: tuple[str, ...] | None) -> Iterator[tuple[Any, str]]:
  try:
    with safetensors.safe_open(path, framework="numpy") as shard:
      held = set(shard.keys())
      for name in names or sorted(held):
        if name not in held:
          raise ValueError(f"{path}: tensor {name!r} of {_INDEX} is missing; download it again")
        yield shard, name
  except safetensors.SafetensorError as error:
    raise ValueError(f"{path} is damaged ({error}); download it again") from error


def tensor_shapes(directory: pathlib.Path) -> dict[str, tuple[int, ...]]:
  """Name -> shape of every tensor; reads the headers of the shards only.

  Raises:
    ValueError: a shard is missing, damaged or truncated, or lacks a tensor of the index.
  """
  return {n: tuple(shard.get_slice(n).get_shape()) for shard, n in _open_shards(directory)}


def tensor_kinds(directory: pathlib.Path) -> dict[str, str]:
  """Name -> dtype of every tensor as safetensors spells it, such as BF16; reads headers only."""
  return {n: shard.get_slice(n).get_dtype() for shard, n in _open_shards(directory)}


def stream_tensors(directory: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, [out, in] or [D] in the stored dtype), one tensor in memory at a time."""
  for shard, name in _open_shards(directory):
    yield name, shard.get_tensor(name)


def map_tensors(directory: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, read-only [out, in] or [D] in the stored dtype) without reading anything.

  The arrays are windows into the mapped files: only what is taken from them is read, and its
  pages are given back when the caller asks for the next tensor.

  Raises:
    ValueError: a damaged shard, or a tensor in a dtype without a NumPy equivalent here.
  """
  for file, names in weight_files(directory).items():
    mapped = None
    for shard, name in _open_shard(file, names):  # which checks the header before it is used here
      mapped = _Mapped(file) if mapped is None else mapped
      kind, start, end = mapped.place(name)
      if kind not in _DTYPES:
        raise ValueError(
          f"{file}: tensor {name!r} is {kind}; convert it to one of {', '.join(sorted(_DTYPES))}"
        )
      flat = np.frombuffer(mapped.buffer, np.uint8, end - start, start).view(_DTYPES[kind])
      yield name, flat.reshape(shard.get_slice(name).get_shape())
      mapped.give_back(start, end)


class _Mapped:
  """A mapped safetensors file: eight bytes of length, a JSON header, the tensors."""

  def __init__(self, path: pathlib.Path):
    with path.open("rb") as file:
      self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    self._data = 8 + int.from_bytes(self.buffer[:8], "little")
    self._header = json.loads(self.buffer[8 : self._data])

  def place(self, name: str) -> tuple[str, int, int]:
    """(dtype, first byte in the file, byte after the last)."""
    entry = self._header[name]
    start, end = entry["data_offsets"]
    return entry["dtype"], self._data + start, self._data + end

  def give_back(self, start: int, end: int) -> None:
    """These bytes need not stay resident; who reads them again has them read again."""
    start -= start % mmap.PAGESIZE
    self.buffer.madvise(mmap.MADV_DONTNEED, start, end - start)
