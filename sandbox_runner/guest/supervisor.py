"""The resident supervisor: takes one task after another over one pipe pair.

A frame is two big-endian 32-bit lengths, a JSON header and a blob. The first frame is the setup;
each further one is a task, answered by a frame for each piece of its output as it comes (so that it
is not lost with the sandbox) and one report. The end of the input, or a frame that is not one, ends
the supervisor, and with it everything in the sandbox.
"""

import gc
import json
import os
import select
import signal
import struct
import sys
import time

from sandbox_runner.guest.boxes import PR_SET_DUMPABLE, NamespaceBox, WipeBox, prctl, write_text
from sandbox_runner.guest.task import become_task, forgo_capabilities, python_program, run_python

LENGTHS = struct.Struct("!II")
MAX_HEADER, MAX_BLOB = 16 << 20, 1 << 30
CHUNK = 1 << 16


def read_exactly(fd, n):
  """n bytes from `fd`; EOFError if the host is gone."""
  parts = []
  while n:
    part = os.read(fd, min(n, 1 << 20))
    if not part:
      raise EOFError
    parts.append(part)
    n -= len(part)
  return b"".join(parts)


def read_frame(fd):
  header_length, blob_length = LENGTHS.unpack(read_exactly(fd, LENGTHS.size))
  if header_length > MAX_HEADER or blob_length > MAX_BLOB:
    raise EOFError
  return json.loads(read_exactly(fd, header_length)), read_exactly(fd, blob_length)


def write_frame(fd, header, blob=b""):
  head = json.dumps(header).encode()
  data = memoryview(LENGTHS.pack(len(head), len(blob)) + head + blob)
  while data:
    data = data[os.write(fd, data) :]


class Supervisor:
  """Runs one task after another, and watches each until its last process is gone."""

  def __init__(self, control_in, control_out, setup):
    self.control_in, self.control_out, self.setup = control_in, control_out, setup
    self.make_box = {"namespaces": NamespaceBox, "wipe": WipeBox}[setup["box"]]
    for name in setup["preload"]:
      __import__(name)
    self.preloaded = {name.split(".")[0] for name in setup["preload"]}
    if not self.make_box.shares_memory_limit:
      write_text("/proc/self/oom_score_adj", "1000")  # a host without memory ends sandboxes first
    gc.collect()
    gc.freeze()  # a collection in a task then leaves these objects, and their pages, alone
    self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

  def serve(self):
    """Until the host is gone. Returns only in a forked Python task: (path, source, argv, env)."""
    box = self.make_box(self.setup)
    write_frame(self.control_out, {"ready": sys.version.split()[0], "pid": os.getpid()})
    while True:
      task, blob = read_frame(self.control_in)
      program = self.run(box, task, blob)
      if program:
        return program
      box = self.make_box(self.setup)

  def run(self, box, task, blob):
    files_size = sum(size for _, size in task["files"])
    pipes = [os.pipe() for _ in range(4)]  # stdin, stdout, stderr, failure of the launch
    (stdin_r, stdin_w), (out_r, out_w), (err_r, err_w), (failed_r, failed_w) = pipes
    started = time.monotonic()
    pid = box.fork()
    if pid == 0:
      return self.start(box, task, blob, (stdin_r, out_w, err_w, failed_w))
    for fd in (stdin_r, out_w, err_w, failed_w):
      os.close(fd)
    watch = Watch(self, pid, stdin_w, (out_r, err_r), blob[files_size:], task)
    watch.until_over(started + task["wall_s"])
    wall = time.monotonic() - started
    watch.end()
    box.destroy()
    watch.drain()
    with open(failed_r, "rb") as f:
      failure = f.read(4096).decode("utf-8", "replace")
    write_frame(self.control_out, watch.report(wall, failure))
    return None

  def start(self, box, task, blob, ends):
    """In the task's process: execs, or returns the program for this interpreter to run."""
    failed = ends[3]
    try:
      failed = become_task(self, box, task, blob, ends)
      program = python_program(task, self.preloaded)
      if program is None:
        argv = [os.fsencode(a) for a in task["argv"]]
        os.execvpe(argv[0], argv, {os.fsencode(k): os.fsencode(v) for k, v in task["env"].items()})
      os.close(failed)
      return (*program, task["env"])
    except OSError as e:
      os.write(failed, f"{task['argv'][0]}: {e}".encode("utf-8", "replace")[:4096])
      os._exit(0)


class Watch:
  """One task's pipes, clock and exit."""

  def __init__(self, supervisor, pid, stdin, outputs, stdin_data, task):
    self.supervisor, self.pid = supervisor, pid
    self.stdin, self.stdin_data = stdin, memoryview(stdin_data)
    self.count = dict.fromkeys(outputs, 0)
    self.cap = task["output_bytes"]
    self.why, self.status, self.usage = "exit", None, None
    self.open = set(outputs)
    for fd in (*outputs, stdin):
      os.set_blocking(fd, False)

  def until_over(self, deadline):
    poll = select.poll()
    for fd in (*self.open, self.supervisor.wake, self.supervisor.control_in):
      poll.register(fd, select.POLLIN)
    poll.register(self.stdin, select.POLLOUT)
    while self.status is None:
      left = deadline - time.monotonic()
      if left <= 0:
        self.why = "wall"
        return
      for fd, _ in poll.poll(left * 1000 + 1):
        if fd == self.stdin:
          if not self.feed():
            poll.unregister(fd)
        elif fd in self.open:
          if not self.read(fd):
            poll.unregister(fd)
        elif fd == self.supervisor.control_in:
          read_frame(fd)  # the only frame that the host may send now: end this task
          self.why = "cancel"
          return
        else:
          self.reap()
      if max(self.count.values()) > self.cap:
        self.why = "output"
        return

  def reap(self):
    while True:  # empty the wake-up pipe
      try:
        if len(os.read(self.supervisor.wake, CHUNK)) < CHUNK:
          break
      except BlockingIOError:
        break
    pid, status, usage = os.wait4(self.pid, os.WNOHANG)
    if pid:
      self.status, self.usage = status, usage

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
    """True while the stream may have more. Hands on the first `cap` bytes and counts all."""
    try:
      data = os.read(fd, CHUNK)
    except BlockingIOError:
      return True
    if not data:
      self.open.discard(fd)
      return False
    room = max(0, self.cap - self.count[fd])
    self.count[fd] += len(data)
    if room:
      stream = list(self.count).index(fd)
      write_frame(self.supervisor.control_out, {"stream": stream}, data[:room])
    return True

  def end(self):
    """The main process first, so that its status is its own."""
    if self.status is None:
      os.kill(self.pid, signal.SIGKILL)
      _, self.status, self.usage = os.wait4(self.pid, 0)

  def drain(self):
    """After the last process is gone: what the pipes still hold."""
    for fd in list(self.open):
      while fd in self.open and self.count[fd] <= self.cap and self.read(fd):
        pass
    if max(self.count.values()) > self.cap and self.why == "exit":
      self.why = "output"
    for fd in (*self.count, *([] if self.stdin is None else [self.stdin])):
      os.close(fd)

  def report(self, wall, failure):
    return {
      "why": self.why,
      "status": self.status,
      "failure": failure,
      "wall_s": wall,
      "cpu_s": self.usage.ru_utime + self.usage.ru_stime,
      "peak_kb": self.usage.ru_maxrss,
      "counts": list(self.count.values()),
    }


def supervise():
  """Takes the pipe pair off the standard descriptors and serves it."""
  control_in, control_out = os.dup(0), os.dup(1)
  null = os.open("/dev/null", os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  prctl(PR_SET_DUMPABLE, 0)  # no task may look into this process, whatever its user
  forgo_capabilities()
  setup, _ = read_frame(control_in)
  return Supervisor(control_in, control_out, setup).serve()


def main():
  """Ends with the host: as the first process of its namespace it takes all others with it."""
  try:
    program = supervise()
  except EOFError:
    os._exit(0)
  run_python(*program)
