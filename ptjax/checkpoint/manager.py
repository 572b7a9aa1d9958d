"""Checkpoints by Orbax: asynchronous, atomic, and only for the model that wrote them."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When to save.

  Attributes:
    every: steps between checkpoints; the last step is always saved.
    keep: newest checkpoints kept.
  """

  every: int = 50
  keep: int = 2

  def __post_init__(self):
    if self.every < 1 or self.keep < 1:
      raise ValueError(f"checkpoint.every {self.every} and keep {self.keep} must be >= 1")


def check_kind(meta: dict[str, Any], part: str, path: pathlib.Path) -> None:
  """Raises ValueError where a checkpoint's record lacks a part that this kind of run has."""
  if part not in meta:
    raise ValueError(
      f"{path} was left by another kind of run, which cannot go on from it; choose another "
      f"--workdir (`export` makes a model of that checkpoint, to start from its weights)"
    )


class _NewestAnd(ocp.checkpoint_managers.PreservationPolicy):
  """Preserves the newest checkpoints, and those of chosen steps."""

  def __init__(self, newest: int):
    self.newest = newest
    self.chosen: frozenset[int] = frozenset()

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    del context
    first = len(checkpoints) - self.newest
    return [i >= first or c.step in self.chosen for i, c in enumerate(checkpoints)]


class Checkpoints:
  """The checkpoints of one workdir.

  A checkpoint named n holds all that step n needs: arrays (`state`) and a JSON record
  (`meta`). It appears under its name only when it is complete.
  """

  def __init__(self, workdir: pathlib.Path, config: CheckpointConfig):
    self.directory = (workdir / "checkpoints").absolute()
    self._preserved = _NewestAnd(config.keep)
    options = ocp.CheckpointManagerOptions(preservation_policy=self._preserved, create=True)
    self._manager = ocp.CheckpointManager(self.directory, options=options)

  def preserve(self, *steps: int) -> None:
    """Keeps the checkpoints of these steps, however old; those chosen before no longer."""
    self._preserved.chosen = frozenset(steps)

  def has(self, step: int) -> bool:
    """Whether there is a checkpoint of that step, complete or on its way."""
    return step in self._manager.all_steps()

  def latest(self) -> int | None:
    """Step of the newest complete checkpoint."""
    return self._manager.latest_step()

  def path(self, step: int) -> pathlib.Path:
    """Directory of a checkpoint."""
    return self.directory / str(step)

  def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
    """Starts a save; the arrays may be donated as soon as this returns."""
    # A copy, since the record is written in a thread while the next step changes its parts; and
    # a bad record fails here, not there.
    meta = json.loads(json.dumps(meta, allow_nan=False))
    self._manager.save(
      step,
      args=ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)),
    )

  def meta(self, step: int) -> dict[str, Any]:
    """The JSON record of a checkpoint."""
    args = ocp.args.Composite(meta=ocp.args.JsonRestore())
    return self._manager.restore(step, args=args)["meta"]

  def restore(self, step: int, like: Any) -> Any:
    """The arrays of a checkpoint, with the shapes, dtypes and shardings of `like`."""
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    return self._manager.restore(step, args=args)["state"]

  def restore_part(self, step: int, like: Any) -> Any:
    """The arrays that `like` names and no others, in host memory, with its dtypes."""
    args = jax.tree.map(lambda x: ocp.RestoreArgs(np.ndarray, dtype=x.dtype), like)
    part = ocp.args.PyTreeRestore(like, restore_args=args, partial_restore=True)
    return self._manager.restore(step, args=ocp.args.Composite(state=part))["state"]

  def wait(self) -> None:
    """Blocks until the last save is complete."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits, and releases the manager's threads."""
    self._manager.close()


def check_model(saved: dict[str, Any], wanted: dict[str, Any], path: pathlib.Path) -> None:
  """Raises ValueError where a checkpoint belongs to another model."""
  different = sorted(k for k in saved.keys() | wanted.keys() if saved.get(k) != wanted.get(k))
  if different:
    details = ", ".join(f"{k}: {saved.get(k)} there, {wanted.get(k)} here" for k in different)
    raise ValueError(
      f"checkpoint {path} is of another model ({details}); use a new workdir, or the "
      f"configuration that it was made with"
    )
