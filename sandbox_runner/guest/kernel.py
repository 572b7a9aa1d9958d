"""The kernel, as the guest needs it: calls that Python does not have, and what it counts."""

import contextlib
import ctypes
import errno
import os
import threading
import time

TASK_ID = 65534  # the user and group of every task
FIRST_FD, LAST_FD = 3, 4096
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 2, 4, 8, 32, 4096
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_DUMPABLE = 1, 2, 4
MNT_DETACH = 2
THREADS_FIELD = 17  # of /proc/PID/stat, counted from the state
FORK_S = 1.0
SHM_INFO, MSG_INFO, SEM_INFO = 14, 12, 19
SYSINFO_TASKS = 80  # where struct sysinfo has the number of tasks, on 64-bit machines

libc = ctypes.CDLL(None, use_errno=True)
holding_lock = ctypes.PyDLL(None, use_errno=True)  # calls that keep the interpreter's lock


def check(result, what):
  """Raises OSError for a libc call that returned -1."""
  if result == -1:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def bare_fork():
  """A fork without what Python does in the child: half a millisecond, most of it copied pages.

  Only for a process that makes no thread, draws no random number and handles no signal. There is no
  other thread here, and this one goes on with the interpreter's lock in both processes.
  """
  pid = holding_lock.fork()
  check(pid, "fork")
  return pid


def patiently(fork):
  """`fork()`, tried again for a second if it is refused: the kernel may yet count who has ended."""
  deadline = time.monotonic() + FORK_S
  while True:
    try:
      return fork()
    except OSError as e:
      if e.errno not in (errno.EAGAIN, errno.ENOMEM) or time.monotonic() > deadline:
        raise
      time.sleep(0.01)


def prctl(option, *args):
  words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in args]
  check(libc.prctl(option, *words, *[ctypes.c_ulong(0)] * (4 - len(words))), f"prctl {option}")


def mount(source, target, kind, flags, data=None):
  encoded = [x.encode() if x else None for x in (source, target, kind)]
  check(libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


@contextlib.contextmanager
def as_task_user():
  """Files are opened and read as the task's user in here.

  At a change of user the kernel forgets the signal that this process is to get when its launcher
  dies, so that is set again.
  """
  death = ctypes.c_int()
  prctl(PR_GET_PDEATHSIG, ctypes.byref(death))
  libc.setfsgid(TASK_ID)
  libc.setfsuid(TASK_ID)
  try:
    yield
  finally:
    libc.setfsuid(0)
    libc.setfsgid(0)
    prctl(PR_SET_PDEATHSIG, death.value)


def enter_namespaces(fds):
  """Of processes (for children), of mounts, and of IPC."""
  for fd, kind in zip(fds, (CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWIPC), strict=True):
    check(libc.setns(fd, kind), "setns")


def write_text(path, text):
  with open(path, "w") as f:
    f.write(text)


def last_number():
  """The last one that this process namespace has given, as digits."""
  try:
    fd = os.open("/proc/sys/kernel/ns_last_pid", os.O_RDONLY)
  except FileNotFoundError:  # a kernel without checkpoints: the same number stands elsewhere
    fd = os.open("/proc/loadavg", os.O_RDONLY)
  last = os.read(fd, 128).split()[-1]
  os.close(fd)
  return last


def next_number():
  """The one after all that this process namespace has given so far, taken by a thread.

  Where the kernel does not tell the last one. A process would cost gVisor 5 ms and more.
  """
  taken = []
  thread = threading.Thread(target=lambda: taken.append(threading.get_native_id()))
  thread.start()
  thread.join()
  return taken[0]


def bytes_used(directory):
  """Of the file system that `directory` is in."""
  status = os.statvfs(directory)
  return (status.f_blocks - status.f_bfree) * status.f_frsize


def count_threads(but):
  """Processes and threads that are in sight, but for the processes `but`."""
  count = 0
  for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in but:
      try:
        with open(f"/proc/{name}/stat", "rb") as f:
          count += int(f.read().rpartition(b")")[2].split()[THREADS_FIELD])
      except (FileNotFoundError, ProcessLookupError):
        continue  # it has just ended
  return count


def count_tasks():
  """Processes and threads of the whole machine; under gVisor that is the sandbox."""
  buffer = ctypes.create_string_buffer(512)
  check(libc.sysinfo(buffer), "sysinfo")
  return ctypes.c_ushort.from_buffer(buffer, SYSINFO_TASKS).value


def has_ipc_objects():
  """True if there may be a System V object: unless the kernel says that there is none."""
  buffer = (ctypes.c_int * 128)()
  calls = (  # a call of the ..._INFO command, and the field in which it has the number of objects
    (lambda: libc.shmctl(0, SHM_INFO, buffer), 0),
    (lambda: libc.msgctl(0, MSG_INFO, buffer), 0),
    (lambda: libc.semctl(0, 0, SEM_INFO, buffer), 7),
  )
  return any(call() == -1 or buffer[field] for call, field in calls)


def remove_ipc_objects():
  """Removes System V objects. Only their owner may, so a child does it as the task's user."""
  pid = os.fork()
  if pid == 0:
    os.setresuid(TASK_ID, TASK_ID, TASK_ID)
    buffer = ctypes.create_string_buffer(512)
    calls = (  # a call by (identifier or index, command), its ..._INFO and its ..._STAT
      (lambda i, command: libc.shmctl(i, command, buffer), SHM_INFO, 13),
      (lambda i, command: libc.msgctl(i, command, buffer), MSG_INFO, 11),
      (lambda i, command: libc.semctl(i, 0, command, buffer), SEM_INFO, 18),
    )
    for control, info, status in calls:
      for index in range(control(0, info) + 1):
        identifier = control(index, status)
        if identifier >= 0:
          control(identifier, 0)
    os._exit(0)
  os.waitpid(pid, 0)
