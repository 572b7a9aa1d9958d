"""A pseudo-terminal of a sandbox, and one command that runs on it.

The terminal stays from one command to the next; the end of a command is the end of its process, as
wait(2) tells it. Nothing that is written to the terminal means anything to the supervisor.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import select
import struct
import termios
import time

from sandbox_runner.guest.frames import CHUNK
from sandbox_runner.guest.kernel import as_task_user
from sandbox_runner.guest.watch import Watch

FLUSH_S = 1.0


class Terminal:
  """Both ends are kept open, so that it has a life of its own."""

  def __init__(self):
    with as_task_user():  # the device belongs to the user that opens it
      self.master, self.slave = os.openpty()
    os.set_blocking(self.master, False)
    os.set_blocking(self.slave, False)

  def close(self):
    os.close(self.master)
    os.close(self.slave)

  def resize(self, rows, columns):
    """The kernel tells the foreground processes."""
    fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

  def slave_for_task(self):
    """An open description of its own: a task may set flags on it as it likes. To be closed."""
    return os.open(f"/proc/self/fd/{self.slave}", os.O_RDWR | os.O_NOCTTY)


class TerminalWatch(Watch):
  """A command on the terminal: one stream, and input and sizes that come while it runs."""

  ends_box = False  # what it left in the background may stay

  def __init__(self, supervisor, newborn, pid, terminal, task):
    super().__init__(supervisor, newborn, pid, None, (terminal.master,), b"", task)
    self.terminal = terminal

  def control(self, header, blob):
    if "input" in header:
      self.stdin_data = memoryview(bytes(self.stdin_data) + blob)
      self.poll.register(self.terminal.master, select.POLLIN | select.POLLOUT)
    elif "resize" in header:
      self.terminal.resize(*header["resize"])
    else:
      super().control(header, blob)

  def ready(self, fd, events):
    if events & select.POLLOUT and not self.feed():
      self.poll.register(fd, select.POLLIN)
    if events & ~select.POLLOUT:
      self.read(fd)

  def feed(self):
    with contextlib.suppress(BlockingIOError):
      self.stdin_data = self.stdin_data[os.write(self.terminal.master, self.stdin_data[:CHUNK]) :]
    return bool(self.stdin_data)

  def drain(self):
    """What the command had written when it ended.

    The kernel hands it on in its own time, but in order: so a random number is written behind it,
    and all before that number is the command's. The number itself is never handed on.
    """
    number = str(secrets.randbelow(10**40)).encode()
    deadline = time.monotonic() + FLUSH_S
    tail, sent = b"", False
    while number not in tail and len(tail) <= self.cap + CHUNK and time.monotonic() < deadline:
      try:
        if not sent:
          sent = os.write(self.terminal.slave, number) == len(number)
        tail += os.read(self.terminal.master, CHUNK)
      except BlockingIOError:
        select.select([self.terminal.master], [], [], 0.01)
      except OSError as e:
        if e.errno != errno.EIO:
          raise
        break
    if number not in tail:  # too much, or too slow: what is left is not the next command's
      with contextlib.suppress(termios.error):  # gVisor: there no command gets a used terminal
        termios.tcflush(self.terminal.master, termios.TCIFLUSH)
    self.hand_on(self.terminal.master, tail.partition(number)[0])
    if max(self.count.values()) > self.cap and self.why == "exit":
      self.why = "output"

  def report(self, wall, failure, processes):
    report = super().report(wall, failure, processes)
    return {**report, "counts": [*report["counts"], 0]}
