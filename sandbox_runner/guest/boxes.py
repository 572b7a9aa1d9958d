"""Boxes: what holds all that a task makes, so that all of it can be ended and removed at once.

`NamespaceBox` gives each task new process, mount and IPC namespaces with one tmpfs behind every
writable directory: nothing of a task can outlive its box, so there is nothing to wipe. `WipeBox` is
for sandboxes without the right to make namespaces (docker): it kills every other process of the
sandbox and empties the writable directories, and raises if it cannot.
"""

import ctypes
import errno
import os
import signal
import stat

TASK_ID = 65534  # the user and group of every task
FIRST_FD, LAST_FD = 3, 4096
WRITABLE = ("/work", "/tmp", "/dev/shm")
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 2, 4, 8, 32, 4096
PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
  """Raises OSError for a libc call that returned -1."""
  if result == -1:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def prctl(option, *args):
  words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in args]
  check(libc.prctl(option, *words, *[ctypes.c_ulong(0)] * (4 - len(words))), f"prctl {option}")


def mount(source, target, kind, flags, data=None):
  encoded = [x.encode() if x else None for x in (source, target, kind)]
  check(libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def write_text(path, text):
  with open(path, "w") as f:
    f.write(text)


class NamespaceBox:
  """New process, mount and IPC namespaces, held by a first process that only reaps."""

  shares_memory_limit = False

  def __init__(self, setup):
    self.disk_mb, self.own_users = setup["disk_mb"], setup["own_users"]
    outer = os.open("/proc/self/ns/pid", os.O_RDONLY)
    ready, signal_ready = os.pipe()
    check(libc.unshare(CLONE_NEWPID), "unshare pid")
    self.init = os.fork()
    if self.init == 0:
      self._hold(signal_ready)
    check(libc.setns(outer, CLONE_NEWPID), "setns pid")
    os.close(outer)
    os.close(signal_ready)
    built = os.read(ready, 1)
    os.close(ready)
    if not built:
      raise OSError("the namespaces of a box could not be made")
    names = ("pid", "mnt", "ipc")
    self.spaces = [os.open(f"/proc/{self.init}/ns/{n}", os.O_RDONLY) for n in names]

  def _hold(self, signal_ready):
    """The first process of the box. It leaves all signals alone, and the kernel reaps for it."""
    prctl(PR_SET_DUMPABLE, 1)  # so that the supervisor may open its namespaces
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare mounts")
    mount("tmpfs", "/box", "tmpfs", MS_NOSUID | MS_NODEV, self._size(self.disk_mb))
    for target in WRITABLE:
      part = "/box/" + os.path.basename(target)
      os.mkdir(part)
      os.chmod(part, 0o1777)
      mount(part, target, None, MS_BIND)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.write(signal_ready, b"1")
    os.closerange(FIRST_FD, LAST_FD)
    while True:
      signal.pause()

  @staticmethod
  def _size(disk_mb):
    return f"size={disk_mb}m,nr_inodes={1024 + 256 * disk_mb},mode=0755"

  def fork(self):
    """A fork of this process inside the box's process namespace."""
    outer = os.open("/proc/self/ns/pid", os.O_RDONLY)
    check(libc.setns(self.spaces[0], CLONE_NEWPID), "setns pid")
    pid = os.fork()
    if pid:
      check(libc.setns(outer, CLONE_NEWPID), "setns pid")
      os.close(outer)
    return pid

  def enter(self, disk_mb):
    """In the task's process, still with the supervisor's rights."""
    check(libc.setns(self.spaces[1], CLONE_NEWNS), "setns mounts")
    check(libc.setns(self.spaces[2], CLONE_NEWIPC), "setns ipc")
    if disk_mb != self.disk_mb:
      flags = MS_REMOUNT | MS_NOSUID | MS_NODEV
      mount(None, "/box", None, flags, self._size(disk_mb))
    if self.own_users:  # only one user is mapped here: the task gets a user namespace of its own
      check(libc.unshare(CLONE_NEWUSER), "unshare user")
      write_text("/proc/self/setgroups", "deny")
      write_text("/proc/self/uid_map", f"{TASK_ID} 0 1")
      write_text("/proc/self/gid_map", f"{TASK_ID} 0 1")

  def destroy(self):
    """Ends every process of the box. The kernel ends them all before the wait returns."""
    os.kill(self.init, signal.SIGKILL)
    os.waitpid(self.init, 0)
    for fd in self.spaces:
      os.close(fd)


class WipeBox:
  """The whole sandbox as a box: this process is its first one, and may signal all others."""

  own_users = False
  shares_memory_limit = True

  def __init__(self, setup):
    for directory in WRITABLE:
      os.chmod(directory, 0o1777)
    self.writable = [d for d in (*WRITABLE, "/dev/mqueue") if os.path.isdir(d)]

  def fork(self):
    return os.fork()

  def enter(self, disk_mb):
    """The disk limit is that of the sandbox's own mounts."""

  def destroy(self):
    """Kills until nothing is left, then empties the writable directories. Raises if it cannot."""
    for _ in range(1000):
      try:
        os.kill(-1, signal.SIGKILL)
        while os.waitpid(-1, 0)[0]:
          pass
      except (ChildProcessError, ProcessLookupError):
        break
    remove_ipc_objects()
    for directory in self.writable:
      empty(directory)
      if os.listdir(directory):
        raise OSError(errno.ENOTEMPTY, directory)
      os.chmod(directory, 0o1777)


def remove_ipc_objects():
  """Removes System V objects. Only their owner may, so a child does it as the task's user."""
  pid = os.fork()
  if pid == 0:
    os.setresuid(TASK_ID, TASK_ID, TASK_ID)
    buffer = ctypes.create_string_buffer(512)
    calls = (  # a call by (identifier or index, command), its ..._INFO and its ..._STAT
      (lambda i, command: libc.shmctl(i, command, buffer), 14, 13),
      (lambda i, command: libc.msgctl(i, command, buffer), 12, 11),
      (lambda i, command: libc.semctl(i, 0, command, buffer), 19, 18),
    )
    for control, info, status in calls:
      for index in range(control(0, info) + 1):
        identifier = control(index, status)
        if identifier >= 0:
          control(identifier, 0)
    os._exit(0)
  os.waitpid(pid, 0)


def empty(directory):
  """Removes all below `directory`, whatever its modes, names and depth, following no link.

  A child directory with children of its own is moved up before it is emptied, so that neither the
  length of a path nor the depth of a recursion grows with the depth of the tree.
  """
  base = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
  try:
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
  finally:
    os.close(base)
