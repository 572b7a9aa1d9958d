"""seqio tasks and mixtures as sources.

A task is read once, in its own order, and written as JSON lines; from then on it is a source
like any other: random access, shuffled anew each pass, exactly once across a kill. What a task's
preprocessors draw at random is drawn once. TensorFlow is imported only when a task is written.
"""

import importlib
import json
import pathlib
import re
from typing import Any

import numpy as np

from ptjax.data.config import SourceConfig
from ptjax.data.provenance import sha256_of
from ptjax.data.sources import Record


def seqio_sources(
  name: str,
  *,
  license: str,
  origin: str,
  directory: str | pathlib.Path,
  module: str | None = None,
  split: str = "train",
  seed: int = 0,
) -> tuple[SourceConfig, ...]:
  """A registered task, or the tasks of a mixture at its rates, for `DataConfig.sources`.

  Args:
    name: of the task or mixture.
    license: SPDX expression of the data.
    origin: where the data is from.
    directory: receives `NAME/manifest.json` and one file a task; what is there already is used
      again, without TensorFlow, and checked against its hash when the run opens it.
    module: imported first, to register the task.
    split: of the task.
    seed: of its preprocessors.

  Raises:
    ValueError: seqio is not installed, the name is unknown, or a task has no examples.
  """
  home = pathlib.Path(directory) / _safe(f"{name}-{split}-{seed}")
  manifest = home / "manifest.json"
  if not manifest.exists():
    _write(home, name, module, split, seed)
  return tuple(
    SourceConfig(
      name=task["task"],
      files=(str(home / task["file"]),),
      license=license,
      origin=f"seqio {name}, split {split}: {origin}",
      sha256=(task["sha256"],),
      weight=task["rate"],
    )
    for task in json.loads(manifest.read_text())
  )


def _safe(name: str) -> str:
  return re.sub(r"[^\w.-]", "_", name)


def _write(home: pathlib.Path, name: str, module: str | None, split: str, seed: int) -> None:
  """Writes the files, then the manifest, so that a manifest stands for complete files."""
  try:
    import seqio
  except ImportError as error:
    raise ValueError(f"source {name!r} needs seqio; pip install 'ptjax[seqio]'") from error
  if module is not None:
    importlib.import_module(module)
  try:
    provider = seqio.get_mixture_or_task(name)
  except ValueError as error:
    raise ValueError(f"{error} Name the module that registers {name!r}.") from error
  home.mkdir(parents=True, exist_ok=True)
  mixture = isinstance(provider, seqio.Mixture)
  tasks = []
  for task in provider.tasks if mixture else [provider]:
    path = home / f"{_safe(task.name)}.jsonl"
    _write_task(path, task, split, seed)
    rate = float(provider.get_rate(task)) if mixture else None
    tasks.append({"task": task.name, "file": path.name, "sha256": sha256_of(path), "rate": rate})
  draft = home / ".manifest.json.new"
  draft.write_text(json.dumps(tasks, indent=2) + "\n")
  draft.replace(home / "manifest.json")


def _write_task(path: pathlib.Path, task: Any, split: str, seed: int) -> None:
  if split not in task.splits:
    raise ValueError(f"seqio task {task.name!r} has the splits {list(task.splits)}, not {split!r}")
  examples = task.get_dataset(split=split, shuffle=False, seed=seed, num_epochs=1)
  count = 0
  with path.open("w", encoding="utf-8", newline="\n") as file:
    for example in examples.as_numpy_iterator():
      file.write(json.dumps(_plain(example), ensure_ascii=False) + "\n")
      count += 1
  if count == 0:
    raise ValueError(f"seqio task {task.name!r} has no examples in split {split!r}")


def _plain(example: dict[str, Any]) -> Record:
  """Arrays as lists, byte strings as text."""

  def plain(value: Any) -> Any:
    if isinstance(value, bytes):
      return value.decode("utf-8")
    if isinstance(value, np.ndarray | np.generic):
      return plain(value.tolist())
    if isinstance(value, list):
      return [plain(v) for v in value]
    return value

  return {key: plain(value) for key, value in example.items()}
