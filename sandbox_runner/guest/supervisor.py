"""The resident supervisor: takes one task after another over one pipe pair.

The first frame is the setup; each further one is a task, answered by a frame for each piece of its
output as it comes (so that it is not lost with the sandbox), one report, and the files that it was
asked to give back. The end of the input, or a frame that is not one, ends the supervisor, and with
it everything in the sandbox.
"""

import gc
import os
import signal
import sys
import time

from sandbox_runner.guest.boxes import (
  PR_SET_DUMPABLE,
  NamespaceBox,
  WipeBox,
  empty_directory,
  prctl,
  write_text,
)
from sandbox_runner.guest.files import Reading
from sandbox_runner.guest.frames import read_frame, write_frame
from sandbox_runner.guest.image import read_settings
from sandbox_runner.guest.launch import Launch
from sandbox_runner.guest.task import become_task, forgo_capabilities, python_program, run_python
from sandbox_runner.guest.terminal import Terminal, TerminalWatch
from sandbox_runner.guest.watch import Watch


class Supervisor:
  """Runs one task after another, and watches each until its last process is gone."""

  def __init__(self, control_in, control_out, setup):
    self.control_in, self.control_out, self.setup = control_in, control_out, setup
    self.make_box = {"namespaces": NamespaceBox, "wipe": WipeBox}[setup["box"]]
    preload, self.image_env = read_settings()
    os.environ.update(self.image_env)  # before the modules that heed it
    for name in (*setup["preload"], *preload):
      __import__(name)
    self.preloaded = {name.split(".")[0] for name in (*setup["preload"], *preload)}
    if not self.make_box.shares_memory_limit:
      write_text("/proc/self/oom_score_adj", "1000")  # a host without memory ends sandboxes first
    gc.collect()
    gc.freeze()  # a collection in a task then leaves these objects, and their pages, alone
    self.terminal = None
    self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

  def serve(self):
    """Until the host is gone. Returns only in a forked Python task: (path, source, argv, env)."""
    self.box = self.make_box(self.setup)
    self.send({"ready": sys.version.split()[0], "pid": os.getpid()})
    while True:
      header, blob = read_frame(self.control_in)
      if "argv" in header:
        program = self.run(header, blob)
        if program:
          return program
      elif "read" in header:
        self.send(Reading(header["read"], self.send).walk(self.box.work))
      # Anything else was meant for a task that ended while it was on its way.

  def run(self, task, blob):
    task["env"] = {**self.image_env, **task["env"]}
    if task["entries"] is not None:
      empty_directory(self.box.work)
    files_size = sum(size for *_, size in task["files"] + (task["entries"] or []))
    launch = Launch()
    started = time.monotonic()
    if task["terminal"]:
      watch = self.start_on_terminal(task, blob, launch)
    else:
      watch = self.start_on_pipes(task, blob[:files_size], blob[files_size:], launch)
    if isinstance(watch, tuple):
      return watch
    launch.started()
    watch.until_over(started + task["wall_s"])
    wall = time.monotonic() - started
    watch.end()
    stays = task["terminal"] and watch.why == "exit"  # what it left in the background goes on
    processes = None if stays else self.box.end_processes(watch.pid)
    watch.drain()
    report = watch.report(wall, launch.failure(), None if task["terminal"] else processes)
    if task["copy_out"]:
      self.send(report)
      self.send(Reading(task["copy_out"], self.send).walk(self.box.work))
      report = {"clean": True}  # this comes last, however long it takes to forget the task
    if not stays:
      self.box.forget(task["keep"])
    self.send(report)
    if not stays:
      self.box = self.box.replace(task["keep"])
    return None

  def start_on_pipes(self, task, files, stdin, launch):
    (stdin_r, stdin_w), (out_r, out_w), (err_r, err_w) = (os.pipe() for _ in range(3))
    pid = self.box.fork()
    if pid == 0:
      return self.start(task, files, (stdin_r, out_w, err_w, launch.in_task()))
    for fd in (stdin_r, out_w, err_w):
      os.close(fd)
    return Watch(self, launch, pid, stdin_w, (out_r, err_r), stdin, task)

  def start_on_terminal(self, task, files, launch):
    if self.terminal and self.setup["guest_kernel"]:  # there a dead session keeps its terminal
      self.terminal.close()
      self.terminal = None
    self.terminal = self.terminal or Terminal()
    self.terminal.resize(*task["terminal"])
    pid = self.box.fork()
    if pid == 0:
      slave = self.terminal.slave_for_task()
      return self.start(task, files, (slave, slave, slave, launch.in_task()))
    return TerminalWatch(self, launch, pid, self.terminal, task)

  def send(self, header, blob=b""):
    write_frame(self.control_out, header, blob)

  def start(self, task, blob, ends):
    """In the task's process: execs, or returns the program for this interpreter to run."""
    failed = ends[3]
    try:
      failed = become_task(self, self.box, task, blob, ends)
      if not task["argv"]:
        os._exit(0)  # the files were all that was wanted
      program = python_program(task, self.preloaded)
      if program is None:
        argv = [os.fsencode(a) for a in task["argv"]]
        os.execvpe(argv[0], argv, {os.fsencode(k): os.fsencode(v) for k, v in task["env"].items()})
      os.close(failed)
      return (*program, task["env"])
    except OSError as e:
      os.write(failed, f"{(task['argv'] or ['files'])[0]}: {e}".encode("utf-8", "replace")[:4096])
      os._exit(0)


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
