"""The process of the next task: there before its task comes, so that a task waits for no fork.

A newborn is in its box and its control group, and has given up all that a task may not have: it has
no right of the supervisor's, no descriptor but its streams and one socket, and its filter of system
calls. It waits on the socket. The supervisor sends it the task, and closes the socket if there is
none; it answers with its counters, or with what kept it from being born or from writing its files.
The socket is closed when the program begins.
"""

import contextlib
import os
import socket
import struct

from sandbox_runner.guest.frames import LENGTHS
from sandbox_runner.guest.kernel import as_task_user

OPENED = struct.Struct("!cQ")  # goes with the counters: a mark, and the microseconds used so far
MARK = b"\0"  # no message of a failure begins like it
MAX_WORDS = 4096


class Ends:
  """Pipes for the three streams and a socket. Made before the fork; each side keeps its half."""

  def __init__(self):
    self.ours, self.theirs = socket.socketpair()
    pairs = [os.pipe() for _ in range(3)]
    self.for_task = (pairs[0][0], pairs[1][1], pairs[2][1])
    self.for_watch = [pairs[0][1], pairs[1][0], pairs[2][0]]

  def in_supervisor(self):
    self.theirs.close()
    for fd in self.for_task:
      os.close(fd)

  def close(self):
    """What is left to the supervisor, if no task is watched."""
    self.ours.close()
    for fd in self.for_watch:
      os.close(fd)


class Newborn:
  """In the supervisor: the process `pid`, which waits at the other half of `ends`."""

  def __init__(self, pid, ends):
    self.pid, self.socket, self.streams = pid, ends.ours, ends.for_watch
    self._ends = ends
    self._said = b""
    self._io: int | None = None

  def waits(self):
    """False if it has ended, as by lack of memory or because it could not be born."""
    return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

  def bury(self):
    """One that has ended before it had a task."""
    os.waitpid(self.pid, 0)
    self._ends.close()

  def give(self, header, files, descriptors, seconds):
    """Sends the task: a JSON header, the bytes of its files, and a terminal if it has one.

    What it does not take, because it has ended or has no time left, is not missed: how it ends is
    what counts.
    """
    self.socket.settimeout(seconds)
    with contextlib.suppress(OSError):
      lengths = LENGTHS.pack(len(header), len(files))
      socket.send_fds(self.socket, [lengths], descriptors)
      self.socket.sendall(header)
      if files:
        self.socket.sendall(files)
    self.socket.setblocking(False)

  def dismiss(self):
    """Has it end without a task."""
    self.socket.shutdown(socket.SHUT_WR)
    self.socket.setblocking(False)

  def _listen(self):
    try:
      while True:
        data, fds, _, _ = socket.recv_fds(self.socket, MAX_WORDS, 1)
        self._io = (fds or [self._io])[0]
        self._said += data
        if not data:
          return
    except (BlockingIOError, ConnectionResetError):
      return  # the program has not begun, or is what has ended so soon

  def used_s(self):
    """Processor seconds that it had used when its task came."""
    self._listen()
    if not self._said.startswith(MARK) or len(self._said) < OPENED.size:
      return 0.0
    return OPENED.unpack_from(self._said)[1] / 1e6

  def bytes_moved(self):
    """[read, written] by the task's main process, which has ended but is not reaped, or None.

    The kernel counts its children with it when it waits for them; gVisor does not.
    """
    self._listen()
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

  def failure(self, by_itself):
    """Why the program could not begin; "" if it did, or if its process has been ended before.

    Asked when its process is gone.
    """
    self._listen()
    self.socket.close()
    if self._io is not None:
      os.close(self._io)
    has_begun = self._said.startswith(MARK)
    words = self._said[OPENED.size :] if has_begun else self._said
    if by_itself and not words and not has_begun:
      return "its process was gone before its task came"
    return words[:MAX_WORDS].decode("utf-8", "replace")


class Inbox:
  """In the newborn: its socket. It reads by recv, which is not counted as the task's."""

  def __init__(self, end):
    self._socket = end

  def move_to(self, fd):
    """To this number, whoever has it."""
    moved = self._socket.detach()
    if moved != fd:
      os.dup2(moved, fd, inheritable=False)
    self._socket = socket.socket(fileno=fd)

  def wait(self):
    """(length of the header, of the files, descriptors) of the task; None if there is none."""
    data, fds, _, _ = socket.recv_fds(self._socket, LENGTHS.size, 1)
    if not data:
      return None
    return *LENGTHS.unpack(data + self.read(LENGTHS.size - len(data))), fds

  def read(self, size):
    """Raises EOFError if the supervisor gives up."""
    parts = []
    while size:
      part = self._socket.recv(min(size, 1 << 20))
      if not part:
        raise EOFError
      parts.append(part)
      size -= len(part)
    return b"".join(parts)

  def copy(self, size, file):
    """The next bytes into a file, piece by piece: the task's memory does not hold them all."""
    while size:
      part = self._socket.recv(min(size, 1 << 18))
      if not part:
        raise EOFError
      file.write(part)
      size -= len(part)

  def offer_counters(self, used_us):
    """As the task's user: opens its counters for the supervisor to read."""
    try:
      counters = [os.open("/proc/self/io", os.O_RDONLY)]
    except OSError:
      counters = []
    socket.send_fds(self._socket, [OPENED.pack(MARK, used_us)], counters)
    for fd in counters:
      os.close(fd)

  def say(self, words):
    """What has failed."""
    self._socket.sendall(words.encode("utf-8", "replace")[:MAX_WORDS])

  def close(self):
    self._socket.close()
