"""One task while it runs: its pipes, its clock, its limits and its exit."""

import os
import resource
import select
import signal
import time

from sandbox_runner.guest.frames import CHUNK, read_frame

OVERRUN_POLL_S = 0.1


class Watch:
  """Of the task whose main process is `pid`."""

  ends_box = True  # when the main process has ended

  def __init__(self, supervisor, newborn, pid, stdin, outputs, stdin_data, task):
    self.supervisor, self.newborn, self.pid, self.task = supervisor, newborn, pid, task
    self.stdin, self.stdin_data = stdin, memoryview(stdin_data)
    self.count = dict.fromkeys(outputs, 0)
    self.cap = task["output_bytes"]
    self.why, self.io, self.used_s = "exit", None, 0.0
    self.status: int | None = None
    self.usage: resource.struct_rusage
    self.open = set(outputs)
    self.poll = select.poll()
    for fd in (*outputs, *([] if stdin is None else [stdin])):
      os.set_blocking(fd, False)

  def until_over(self, deadline):
    for fd in (*self.open, self.supervisor.wake, self.supervisor.control_in):
      self.poll.register(fd, select.POLLIN)
    if self.stdin_data:
      self.poll.register(self.stdin, select.POLLOUT)
    elif self.stdin is not None:
      os.close(self.stdin)
      self.stdin = None
    next_look = time.monotonic() + OVERRUN_POLL_S
    while self.status is None and self.why == "exit":
      now = time.monotonic()
      if now >= deadline:
        self.why = "wall"
      elif now >= next_look:
        self.why = self.supervisor.box.overrun(self.task) or "exit"
        next_look = now + OVERRUN_POLL_S
      else:
        for fd, events in self.poll.poll((min(deadline, next_look) - now) * 1000 + 1):
          if fd == self.supervisor.control_in:
            self.control(*read_frame(fd))
          elif fd == self.supervisor.wake:
            self.reap()
          else:
            self.ready(fd, events)
        if self.why == "exit" and max(self.count.values()) > self.cap:
          self.why = "output"

  def control(self, header, blob):
    """The host may send one thing while a task runs: that it shall end."""
    self.why = "cancel"

  def ready(self, fd, events):
    more = self.feed() if fd == self.stdin else self.read(fd)
    if not more:
      self.poll.unregister(fd)

  def reap(self):
    while True:  # empty the wake-up pipe
      try:
        if len(os.read(self.supervisor.wake, CHUNK)) < CHUNK:
          break
      except BlockingIOError:
        break
    self.take_status(os.WNOHANG)
    self.supervisor.box.reap_orphans(self.pid)

  def take_status(self, options):
    """Once the main process has ended: its status, and what the kernel has counted for it."""
    if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options):
      if self.ends_box:
        self.supervisor.box.main_has_ended()
      self.io, self.used_s = self.newborn.bytes_moved(), self.newborn.used_s()
      _, self.status, self.usage = os.wait4(self.pid, 0)

  def feed(self):
    """True while there is more input that the program may want."""
    try:
      self.stdin_data = self.stdin_data[os.write(self.stdin, self.stdin_data[:CHUNK]) :]
    except BlockingIOError:
      return True
    except BrokenPipeError:
      self.stdin_data = self.stdin_data[:0]
    if not self.stdin_data:
      os.close(self.stdin)
      self.stdin = None
    return bool(self.stdin_data)

  def read(self, fd):
    """True while the stream may have more."""
    try:
      data = os.read(fd, CHUNK)
    except BlockingIOError:
      return True
    if not data:
      self.open.discard(fd)
      return False
    self.hand_on(fd, data)
    return True

  def hand_on(self, fd, data):
    """The first `cap` bytes of a stream, in pieces; all are counted."""
    kept = data[: max(0, self.cap - self.count[fd])]
    self.count[fd] += len(data)
    stream = list(self.count).index(fd)
    for at in range(0, len(kept), CHUNK):
      self.supervisor.send({"stream": stream}, kept[at : at + CHUNK])

  def end(self):
    """The main process first, so that its status is its own."""
    if self.status is None:
      os.kill(self.pid, signal.SIGKILL)
      self.take_status(0)

  def drain(self):
    """After the last process is gone: what the pipes still hold."""
    for fd in list(self.open):
      while fd in self.open and self.count[fd] <= self.cap and self.read(fd):
        pass
    if max(self.count.values()) > self.cap and self.why == "exit":
      self.why = "output"
    for fd in (*self.count, *([] if self.stdin is None else [self.stdin])):
      os.close(fd)

  def cpu_s(self):
    """Of the task, without what its process had used before; at the limit as the kernel counts."""
    whole = self.usage.ru_utime + self.usage.ru_stime
    if whole >= self.task["cpu_s"]:
      return whole
    return max(0.0, whole - self.used_s)

  def report(self, wall, failure, processes):
    return {
      "why": self.why,
      "status": self.status,
      "failure": failure,
      "wall_s": wall,
      "cpu_s": self.cpu_s(),
      "peak_kb": self.usage.ru_maxrss,
      "counts": list(self.count.values()),
      "io": self.io,
      "processes": processes,
    }
