"""What a task's process says of its start, over a socket that is closed when its program begins."""

import os
import socket

from sandbox_runner.guest.boxes import as_task_user

OPENED = b"\0"  # goes with the descriptor; no message of a failure begins like it


class Launch:
  """Made before the fork. `theirs` is the task's end."""

  def __init__(self):
    self.ours, theirs = socket.socketpair()
    self.theirs = theirs.detach()
    self._said = b""
    self._io: int | None = None

  def in_task(self):
    """In the task's process: its end. The other one goes with all other descriptors."""
    self.ours.detach()
    return self.theirs

  def started(self):
    """In the supervisor, once the task has its process."""
    os.close(self.theirs)
    self.ours.setblocking(False)

  def listen(self):
    try:
      while True:
        data, fds, _, _ = socket.recv_fds(self.ours, 4096, 1)
        self._io = (fds or [self._io])[0]
        self._said += data
        if not data:
          return
    except BlockingIOError:
      return  # the program has not begun, or is what has ended so soon

  def bytes_moved(self):
    """[read, written] by the task's main process, which has ended but is not reaped, or None.

    The kernel counts its children with it when it waits for them; gVisor does not.
    """
    self.listen()
    if self._io is None:
      return None
    try:
      with as_task_user():  # a task may look at its own counters, this process may not
        lines = os.pread(self._io, 4096, 0).splitlines()
      found = {name: int(value) for name, value in (line.split(b":") for line in lines)}
    except (OSError, ValueError):
      return None
    read = found.get(b"rchar", found.get(b"char"))  # gVisor has lost a letter
    written = found.get(b"wchar")
    return None if read is None or written is None else [read, written]

  def failure(self):
    """Why the program could not begin; "" if it did. Asked when its process is gone."""
    self.listen()
    self.ours.close()
    if self._io is not None:
      os.close(self._io)
    return self._said.removeprefix(OPENED)[:4096].decode("utf-8", "replace")


def offer_counters(launch_fd):
  """In the task's process, as the task's user: opens its counters for the supervisor to read."""
  try:
    counters = os.open("/proc/self/io", os.O_RDONLY)
  except OSError:
    return
  with socket.socket(fileno=os.dup(launch_fd)) as launch:
    socket.send_fds(launch, [OPENED], [counters])
  os.close(counters)
