"""Boxes: what holds all that a task makes, so that all of it can be ended and removed at once.

`NamespaceBox` gives each task new process, mount and IPC namespaces with one tmpfs behind every
writable directory: nothing of a task can outlive its box, so there is nothing to wipe. `WipeBox` is
for sandboxes without the right to make namespaces (docker): it kills every other process of the
sandbox and empties the writable directories, and raises if it cannot.

A box's end has steps, between which its files can be read: `main_has_ended`, `end_processes`,
`forget` (all that has to be gone before the host is told), and `replace`, which gives the box of
the next task. With `keep` its files are still there.
"""

import contextlib
import errno
import os
import select
import signal
import stat

from sandbox_runner.guest.kernel import (
  CLONE_NEWIPC,
  CLONE_NEWNS,
  CLONE_NEWPID,
  CLONE_NEWUSER,
  FIRST_FD,
  LAST_FD,
  MNT_DETACH,
  MS_BIND,
  MS_NODEV,
  MS_NOEXEC,
  MS_NOSUID,
  MS_REMOUNT,
  TASK_ID,
  bare_fork,
  bytes_used,
  check,
  count_tasks,
  count_threads,
  enter_namespaces,
  has_ipc_objects,
  last_number,
  libc,
  mount,
  next_number,
  patiently,
  remove_ipc_objects,
  write_text,
)

WRITABLE = ("/work", "/tmp", "/dev/shm")
FIRST_IN_BOX = 2  # the number of the main process; the first is the box's own
ANSWER_S = 1.0
END_ORDER, DONE = b"end", b"done"  # to and from the first process of a box


class NamespaceBox:
  """New process, mount and IPC namespaces, held by a first process that only reaps."""

  shares_memory_limit = False

  def __init__(self, setup, predecessor=None):
    self.setup, self.own_users = setup, setup["own_users"]
    self.disk_mb = predecessor.disk_mb if predecessor else setup["disk_mb"]
    self.first, self.is_ending = FIRST_IN_BOX, False
    self.outer_proc = os.stat("/proc").st_dev
    self.answer, answer_end = os.pipe()
    asked_end, self.asked = os.pipe()
    # All is made in here that can be, and not in the box's first process: there each call would
    # copy pages. It inherits the namespaces, and that its children leave no zombies.
    with self._away():
      if predecessor:
        check(libc.setns(predecessor.spaces[1], CLONE_NEWNS), "setns mounts")
      check(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID), "unshare")
      if predecessor:
        self._drop_proc()
      else:
        self._mount_writable()
      on_child = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
      self.init = patiently(bare_fork)
      if self.init == 0:
        try:
          self._hold(asked_end, answer_end)
        finally:
          os._exit(1)
      signal.signal(signal.SIGCHLD, on_child)
      names = ("pid_for_children", "mnt", "ipc")
      self.spaces = [os.open(f"/proc/self/ns/{n}", os.O_RDONLY) for n in names]
      self.work = os.open("/work", os.O_RDONLY | os.O_DIRECTORY)
    for fd in (answer_end, asked_end):
      os.close(fd)

  def _drop_proc(self):
    """The predecessor's, if one of its processes came so far as to mount it."""
    if os.stat("/proc").st_dev != self.outer_proc:
      check(libc.umount2(b"/proc", MNT_DETACH), "umount /proc")

  @contextlib.contextmanager
  def _away(self):
    """This process is in other namespaces, or has its children in them, and comes back."""
    own = [os.open(f"/proc/self/ns/{n}", os.O_RDONLY) for n in ("pid", "mnt", "ipc")]
    pid = os.getpid()
    try:
      yield
    finally:
      if os.getpid() == pid:
        enter_namespaces(own)
        for fd in own:
          os.close(fd)

  def _hold(self, asked, answer):
    """The first process of the box. It leaves all signals alone, and the kernel reaps for it.

    It takes two orders: a size for the box's file system, and to end the box. Then it kills all
    others, which can start no more once that signal waits for them, and says which number its
    namespace gave to a process or thread last, when it has no child any more. Whoever loses its
    parent becomes one.
    """
    keep = [os.dup2(fd, FIRST_FD + i) for i, fd in enumerate(sorted((asked, answer)))]
    asked, answer = keep if asked < answer else keep[::-1]
    os.closerange(FIRST_FD + 2, LAST_FD)
    while (order := os.read(asked, 32)) not in (END_ORDER, b""):
      os.write(answer, self._remount(int(order)))
    with contextlib.suppress(ProcessLookupError):
      os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
      while True:
        os.waitpid(-1, 0)
    os.write(answer, last_number())

  def _remount(self, disk_mb):
    try:
      mount(None, "/box", None, MS_REMOUNT | MS_NOSUID | MS_NODEV, self._size(disk_mb))
    except OSError as e:
      return str(e).encode()
    return DONE

  def _mount_writable(self):
    mount("tmpfs", "/box", "tmpfs", MS_NOSUID | MS_NODEV, self._size(self.disk_mb))
    for target in WRITABLE:
      part = "/box/" + os.path.basename(target)
      os.mkdir(part)
      os.chmod(part, 0o1777)
      mount(part, target, None, MS_BIND)

  @staticmethod
  def _size(disk_mb):
    return f"size={disk_mb}m,nr_inodes={inodes(disk_mb)},mode=0755"

  def fork(self):
    """A fork of this process inside the box. Raises OSError."""
    with self._away():
      enter_namespaces(self.spaces)
      return os.fork()

  def forgo_first(self):
    """The process that was to be the main one has ended before it was: another one will be."""
    self.first += 1

  def enter(self):
    """In the newborn, still with the supervisor's rights."""
    if os.stat("/proc").st_dev == self.outer_proc:  # only a process of the box can mount its own
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if self.own_users:  # only one user is mapped here: the task gets a user namespace of its own
      check(libc.unshare(CLONE_NEWUSER), "unshare user")
      write_text("/proc/self/setgroups", "deny")
      write_text("/proc/self/uid_map", f"{TASK_ID} 0 1")
      write_text("/proc/self/gid_map", f"{TASK_ID} 0 1")

  def holds_too_much(self, disk_mb):
    """True if what earlier steps have left is more than a file system of this size."""
    used = os.fstatvfs(self.work)
    files = used.f_files - used.f_ffree
    return bytes_used(self.work) > disk_mb << 20 or files > inodes(disk_mb)

  def resize(self, disk_mb):
    """Gives the file system the size that a task has asked for. Returns why it could not."""
    if disk_mb == self.disk_mb:
      return ""
    os.write(self.asked, b"%d" % disk_mb)
    said = os.read(self.answer, 4096)
    if said != DONE:
      return said.decode("utf-8", "replace") or "the first process of the box has ended"
    self.disk_mb = disk_mb
    return ""

  def overrun(self, task):
    """The one tmpfs and the control group refuse what is over a limit; without a group it is seen.

    The task's rlimit is then somewhat above `pids`, so that there is something to be seen.
    """
    if not self.setup["cgroup_fds"] and count_threads({os.getpid(), self.init}) > task["pids"]:
      return "pids"
    return None

  def reap_orphans(self, main):
    """Nothing: the kernel does it for the box's first process."""

  def main_has_ended(self):
    """The box ends itself while this process looks at how the main one has ended."""
    self.is_ending = True
    os.write(self.asked, END_ORDER)

  def end_processes(self, main):
    """Ends every process of the box but its first, which has said so, or else that one too.

    Returns how many processes and threads were started in it, or None.
    """
    if not self.is_ending:
      self.main_has_ended()
    answered, _, _ = select.select([self.answer], [], [], ANSWER_S)
    last = int(os.read(self.answer, 32) or 0) if answered else 0
    if not last:
      self._end_first()
    return last - self.first + 1 if last >= self.first else None

  def _end_first(self):
    """The kernel ends all others of the box before the wait returns."""
    if self.init:
      os.kill(self.init, signal.SIGKILL)
      os.waitpid(self.init, 0)
      self.init = 0

  def forget(self, keep):
    """Nothing: without its namespaces nobody finds what it made."""

  def replace(self, keep):
    self._end_first()  # before a time in which this process hears of no child
    successor = NamespaceBox(self.setup, self if keep else None)
    for fd in (*self.spaces, self.work, self.asked, self.answer):
      os.close(fd)
    return successor


class WipeBox:
  """The whole sandbox as a box: this process is its first one, and may signal all others."""

  own_users = False
  shares_memory_limit = True

  def __init__(self, setup):
    self.counts_tasks = setup["guest_kernel"]
    for directory in WRITABLE:
      os.chmod(directory, 0o1777)
    self.writable = [d for d in (*WRITABLE, "/dev/mqueue") if os.path.isdir(d)]
    self.work = os.open("/work", os.O_RDONLY | os.O_DIRECTORY)

  def fork(self):
    return os.fork()

  def forgo_first(self):
    """Nothing: numbers are counted from the main process on."""

  def enter(self):
    """It is there already."""

  def holds_too_much(self, disk_mb):
    """True if what earlier steps have left is more than this."""
    return sum(map(bytes_used, WRITABLE)) > disk_mb << 20

  def resize(self, disk_mb):
    """The disk limit is that of the sandbox's own mounts."""
    return ""

  def overrun(self, task):
    """The limit that the sandbox as a whole is over, though each of its mounts may have room."""
    if self.holds_too_much(task["disk_mb"]):
      return "disk"
    if self.counts_tasks and count_tasks() - 1 > task["pids"]:  # without this process
      return "pids"
    return None

  def reap_orphans(self, main):
    """Those that have ended. The main process is left to who waits for it."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
      while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid != main:
        os.waitpid(ended.si_pid, 0)

  def main_has_ended(self):
    """Nothing: only this process can end the others."""

  def end_processes(self, main):
    """Kills until nothing is left. Returns how many processes and threads were started, or None."""
    for _ in range(1000):
      try:
        os.kill(-1, signal.SIGKILL)
        while os.waitpid(-1, 0)[0]:
          pass
      except (ChildProcessError, ProcessLookupError):
        break
    last = int(last_number()) or next_number() - 1
    if has_ipc_objects():
      remove_ipc_objects()
    return last - main + 1 if last >= main else None  # the numbers have started anew

  def forget(self, keep):
    """Empties the writable directories. Raises if it cannot."""
    for directory in () if keep else self.writable:
      empty(directory)
      if os.listdir(directory):
        raise OSError(errno.ENOTEMPTY, directory)
      os.chmod(directory, 0o1777)

  def replace(self, keep):
    return self


def inodes(disk_mb):
  """How many files a box of this size may have."""
  return 1024 + 256 * disk_mb


def empty(directory):
  """Removes all below `directory`, whatever its modes, names and depth, following no link.

  A child directory with children of its own is moved up before it is emptied, so that neither the
  length of a path nor the depth of a recursion grows with the depth of the tree.
  """
  base = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
  try:
    empty_directory(base)
  finally:
    os.close(base)


def empty_directory(base):
  """The same, by descriptor."""
  while names := os.listdir(base):
    for name in names:
      if not stat.S_ISDIR(os.lstat(name, dir_fd=base).st_mode):
        os.unlink(name, dir_fd=base)
        continue
      child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
      for inner in os.listdir(child):
        if stat.S_ISDIR(os.lstat(inner, dir_fd=child).st_mode):
          moved = ".wipe-" + os.urandom(12).hex()
          os.rename(inner, moved, src_dir_fd=child, dst_dir_fd=base)
        else:
          os.unlink(inner, dir_fd=child)
      os.close(child)
      os.rmdir(name, dir_fd=base)
