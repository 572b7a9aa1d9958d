"""The resident supervisor: takes one task after another over one pipe pair.

The first frame is the setup; each further one is a task, answered by a frame for each piece of its
output as it comes (so that it is not lost with the sandbox), one report, and the files that it was
asked to give back. The end of the input, or a frame that is not one, ends the supervisor, and with
it everything in the sandbox.
"""

import gc
import json
import os
import signal
import sys
import time

from sandbox_runner.guest.boxes import NamespaceBox, WipeBox, empty_directory
from sandbox_runner.guest.files import Reading
from sandbox_runner.guest.frames import read_frame, read_raw_frame, write_frame
from sandbox_runner.guest.image import read_settings
from sandbox_runner.guest.kernel import PR_SET_DUMPABLE, patiently, prctl, write_text
from sandbox_runner.guest.newborn import Ends, Inbox, Newborn
from sandbox_runner.guest.task import (
  be_born,
  become_task,
  enter_directory,
  execute,
  forgo_capabilities,
  python_program,
  rehearse,
  run_python,
)
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
    self.newborn: Newborn | None = None
    self.stays = False  # processes of a shell are in the box: nobody is born beside them in advance
    self.inherits = False  # what an earlier step of the session has written is in the box
    self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

  def serve(self):
    """Until the host is gone. Returns only in a task of Python: (path, source, argv, env)."""
    self.box = self.make_box(self.setup)
    program = self.bear()
    if program:
      return program
    self.send({"ready": sys.version.split()[0], "pid": os.getpid()})
    while True:
      if not self.stays and (program := self.bear()):
        return program
      header, blob = read_raw_frame(self.control_in)
      order = json.loads(header)
      if "argv" in order:
        if program := self.bear():
          return program
        newborn, self.newborn = self.newborn, None
        self.run(newborn, order, header, blob)
      elif "read" in order:
        self.send(Reading(order["read"], self.send).walk(self.box.work))
      # Anything else was meant for a task that ended while it was on its way.
      header = order = blob = None  # nothing of a task is in sight of the next one

  def bear(self):
    """Sees to it that a process waits for a task. Returns only in that process: its program."""
    if self.newborn and not self.newborn.waits():
      self.newborn.bury()
      self.newborn = None
      self.box.forgo_first()
    if self.newborn:
      return None
    ends = Ends()
    pid = patiently(self.box.fork)
    if pid == 0:
      return self.live(ends)
    ends.in_supervisor()
    self.newborn = Newborn(pid, ends)
    return None

  def live(self, ends):
    """In the newborn: execs, or returns the program for this interpreter to run."""
    inbox, name = Inbox(ends.theirs), "a new process"
    try:
      be_born(self, self.box, ends, inbox)
      rehearse()
      task = become_task(inbox, self.image_env, self.inherits)
      name = task["argv"][0]
      if task["cwd"]:
        enter_directory(task["cwd"])
      program = python_program(task, self.preloaded)
      if program is None:
        execute(task["argv"], task["env"])
      inbox.close()
      return (*program, task["env"])
    except EOFError:
      os._exit(0)
    except OSError as e:
      inbox.say(f"{name}: {e}")
      os._exit(0)

  def run(self, newborn, task, header, blob):
    if task["entries"] is not None:
      empty_directory(self.box.work)
    at = sum(size for *_, size in task["files"] + (task["entries"] or []))
    files, stdin = memoryview(blob)[:at], memoryview(blob)[at:]
    started = time.monotonic()
    too_full = self.inherits and self.box.holds_too_much(task["disk_mb"])
    refused = "" if too_full else self.box.resize(task["disk_mb"])
    if task["terminal"]:
      watch, descriptors = self.watch_terminal(newborn, task)
    else:
      stdin_fd, *outputs = newborn.streams
      watch, descriptors = Watch(self, newborn, newborn.pid, stdin_fd, outputs, stdin, task), []
    if too_full:
      watch.why = "disk"
    if too_full or refused:
      newborn.dismiss()
    else:
      newborn.give(header, files, descriptors, task["wall_s"])
    for fd in descriptors:
      os.close(fd)
    watch.until_over(started + task["wall_s"])
    wall = time.monotonic() - started
    watch.end()
    # What a shell left in the background goes on.
    self.stays = bool(task["terminal"]) and watch.why == "exit"
    processes = None if self.stays else self.box.end_processes(watch.pid)
    watch.drain()
    failure = refused or newborn.failure(watch.why == "exit")
    report = watch.report(wall, failure, None if task["terminal"] else processes)
    if task["copy_out"]:
      self.send(report)
      self.send(Reading(task["copy_out"], self.send).walk(self.box.work))
      report = {"clean": True}  # this comes last, however long it takes to forget the task
    self.inherits = self.stays or task["keep"]
    if not self.stays:
      self.box.forget(task["keep"])
    self.send(report)
    if not self.stays:
      self.box = self.box.replace(task["keep"])

  def watch_terminal(self, newborn, task):
    """(a watch, the descriptors that the newborn needs)"""
    if self.terminal and self.setup["guest_kernel"]:  # there a dead session keeps its terminal
      self.terminal.close()
      self.terminal = None
    self.terminal = self.terminal or Terminal()
    self.terminal.resize(*task["terminal"])
    for fd in newborn.streams:
      os.close(fd)
    slave = self.terminal.slave_for_task()
    return TerminalWatch(self, newborn, newborn.pid, self.terminal, task), [slave]

  def send(self, header, blob=b""):
    write_frame(self.control_out, header, blob)


def reset_signals():
  """As a new interpreter has them, whatever this runner had ignored or blocked, as nohup does.

  A task would inherit it: Ctrl-C, for one, would not reach a program on a terminal.
  """
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  for which in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(which) == signal.SIG_IGN:
      signal.signal(which, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)


def supervise():
  """Takes the pipe pair off the standard descriptors and serves it."""
  control_in, control_out = os.dup(0), os.dup(1)
  null = os.open("/dev/null", os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  prctl(PR_SET_DUMPABLE, 0)  # no task may look into this process, whatever its user
  reset_signals()
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
