"""A workdir belongs to one live run: a lock that the kernel frees when its holder dies."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path


class WorkdirInUseError(ValueError):
  """Another live process holds the workdir."""


@contextlib.contextmanager
def hold(workdir: str | os.PathLike) -> Iterator[Path]:
  """Creates `workdir` if need be and holds `workdir/.lock` until the block ends.

  The lock is an flock, which dies with its process however that ends, SIGKILL included:
  a lock file left behind by a dead run is taken over. The file says who holds it.

  Raises:
    WorkdirInUseError: a live process holds it.
    ValueError: the path is remote, where there is no flock.
  """
  if "://" in str(workdir):
    raise ValueError(f"workdir {workdir} is remote; mount the bucket and give the local path")
  path = Path(workdir)
  path.mkdir(parents=True, exist_ok=True)
  # Opened without truncation: until the lock is ours, the text is that of the holder.
  with (path / ".lock").open("a+") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise WorkdirInUseError(
        f"workdir {workdir} is in use by {_holder(path / '.lock')};"
        " stop that run or choose another --workdir"
      ) from error
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
    file.flush()
    try:
      yield path
    finally:
      file.truncate(0)  # not removed: another process may be about to lock this very file


def _holder(lock: Path) -> str:
  text = lock.read_text()
  if not text:  # the instant between its lock and its note
    return "another process"
  holder = json.loads(text)
  return f"process {holder['pid']} on {holder['host']}"
