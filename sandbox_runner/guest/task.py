"""The task's own process: from a fork of the supervisor to the first line of the program.

A Python program is run by the fork itself, anything else by exec. Both go through `become_task`, so
the isolation of the two is the same.
"""

import atexit
import base64
import ctypes
import errno
import fcntl
import gc
import os
import resource
import signal
import sys
import termios
import threading
import types

from sandbox_runner.guest.boxes import (
  FIRST_FD,
  LAST_FD,
  PR_SET_DUMPABLE,
  TASK_ID,
  check,
  libc,
  prctl,
  write_text,
)
from sandbox_runner.guest.launch import offer_counters

PR_SET_SECCOMP, PR_CAPBSET_DROP = 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47


class SockFprog(ctypes.Structure):
  _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forgo_capabilities():
  """For the supervisor, once: no exec below it can ever gain a capability."""
  try:
    prctl(PR_CAP_AMBIENT, 4)  # clear all
  except OSError as e:
    if e.errno != errno.EINVAL:  # gVisor has no ambient capabilities
      raise
  empty_bounding_set()
  prctl(PR_SET_NO_NEW_PRIVS, 1)


def empty_bounding_set():
  for capability in range(64):
    if libc.prctl(PR_CAPBSET_DROP, *[ctypes.c_ulong(x) for x in (capability, 0, 0, 0)]) == -1:
      break  # past the last one that this kernel knows, or not ours to drop


def drop_privileges(own_users):
  """Leaves the task without a capability. It is already past gaining one by exec."""
  if own_users:
    empty_bounding_set()  # the task's own user namespace has come with a full one
  else:
    os.setgroups([])
    os.setresgid(TASK_ID, TASK_ID, TASK_ID)
    os.setresuid(TASK_ID, TASK_ID, TASK_ID)
  none = (ctypes.c_uint32 * 6)()
  version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
  check(libc.capset(version_3, none), "capset")
  prctl(PR_SET_DUMPABLE, 1)  # a program may look at its own /proc/self


def limit_resources(task):
  limits = {
    resource.RLIMIT_CORE: (0, 0),
    resource.RLIMIT_NOFILE: (1024, 1024),
    resource.RLIMIT_CPU: (task["cpu_s"], task["cpu_s"] + 1),
  }
  if task["address_space"]:
    limits[resource.RLIMIT_AS] = (task["address_space"],) * 2
  if task["processes"]:
    limits[resource.RLIMIT_NPROC] = (task["processes"],) * 2
  for which, pair in limits.items():
    resource.setrlimit(which, pair)


def write_files(files, blob):
  """Only called as the task's user, in its own box, in /work."""
  at = 0
  for name, size in files:
    os.makedirs(os.path.dirname(os.path.join("/work", name)), exist_ok=True)
    with open(name, "wb") as f:
      f.write(blob[at : at + size])
    at += size
  return at


def restore_entries(entries, blob):
  """Makes the work directory what a snapshot of it was; modes and times last."""
  at = 0
  for name, kind, _, _, size in entries:
    content = blob[at : at + size]
    at += size
    if kind == "dir":
      os.mkdir(name)
    elif kind == "link":
      os.symlink(os.fsdecode(content), name)
    else:
      with open(name, "wb") as f:
        f.write(content)
  for name, kind, mode, mtime_ns, _ in reversed(entries):
    if kind != "link":
      os.chmod(name, mode)
    os.utime(name, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def become_task(supervisor, box, task, blob, ends):
  """From the supervisor's fork to the state in which the program's first line may run."""
  stdin, stdout, stderr, failed = ends
  prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to nobody we are
  for fd in supervisor.setup["cgroup_fds"]:
    os.write(fd, b"0")
  if box.shares_memory_limit:
    write_text("/proc/self/oom_score_adj", "1000")  # before the supervisor
  signal.set_wakeup_fd(-1)
  for which in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(which, signal.SIG_DFL)
  os.setsid()
  if task["terminal"]:
    fcntl.ioctl(stdin, termios.TIOCSCTTY, 0)
  box.enter(task["disk_mb"])
  for target, fd in enumerate((stdin, stdout, stderr)):
    os.dup2(fd, target)
  drop_privileges(box.own_users)
  offer_counters(failed)
  os.umask(0o022)
  os.chdir("/work")
  if task["entries"] is not None:
    restore_entries(task["entries"], blob)
  write_files(task["files"], blob)
  if task["cwd"]:
    os.makedirs(task["cwd"], exist_ok=True)
    os.chdir(task["cwd"])
  limit_resources(task)
  code = base64.b64decode(supervisor.setup["seccomp"])
  if code:
    buffer = ctypes.create_string_buffer(code)
    program = SockFprog(len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(program))
  keep = os.dup2(failed, FIRST_FD, inheritable=False) if failed != FIRST_FD else failed
  os.closerange(FIRST_FD + 1, LAST_FD)
  return keep


def python_program(task, preloaded):
  """(path or None, source, sys.argv) if a fork can stand for `python3 FILE|-c CODE ...`."""
  argv, env = task["argv"], task["env"]
  if not task["fork"] or len(argv) < 2 or argv[0] not in ("python3", "python", sys.executable):
    return None
  if any(name.startswith(("PYTHON", "LD_")) for name in env):
    return None  # the interpreter would read these when it starts
  own = {name.split("/")[0].removesuffix(".py") for name, _ in task["files"]}
  if own & preloaded:
    return None  # a file of the task's has to win over the module that is loaded here
  if argv[1] == "-c" and len(argv) > 2:
    return None, os.fsencode(argv[2]), ["-c", *argv[3:]]
  if argv[1].startswith("-") or not os.path.isfile(argv[1]):
    return None
  with open(argv[1], "rb") as f:
    return os.path.abspath(argv[1]), f.read(), argv[1:]


def run_python(path, source, argv, env):
  """What `python3 FILE` or `python3 -c CODE` does from here to its end. Does not return."""
  os.environ.clear()
  os.environ.update(env)
  main = types.ModuleType("__main__")
  main.__dict__["__builtins__"] = __builtins__
  if path:
    main.__file__ = path
    main.__dict__["__cached__"] = None
  sys.modules["__main__"] = main
  sys.path[0] = os.path.dirname(os.path.realpath(path)) if path else ""
  sys.argv = argv
  sys.orig_argv = ["python3", *([] if path else ["-c"]), *argv[0 if path else 1 :]]
  signal.signal(signal.SIGPIPE, signal.SIG_IGN)
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  code = 0
  try:
    exec(compile(source, path or "<string>", "exec", dont_inherit=True), main.__dict__)
  except BaseException as e:  # noqa: BLE001 - this is the end of an interpreter
    code = exit_code(e)
  leave(main, code)


def exit_code(error):
  """Reports what the program raised as the interpreter would, and gives the code for it."""
  if isinstance(error, SystemExit):
    if error.code is None or isinstance(error.code, int):
      return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
  trace = error.__traceback__.tb_next  # without the frame of `run_python`
  sys.excepthook(type(error), error.with_traceback(trace), trace)
  return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def leave(main, code):
  """The interpreter's end without the teardown of the modules that were here before the program.

  That teardown would copy every page of them, and is most of the cost of a short run. Threads are
  joined, exit handlers run, the program's own objects are dropped (so its open files are flushed).
  """
  vars(threading)["_shutdown"]()
  atexit._run_exitfuncs()
  main.__dict__.clear()
  gc.collect()
  for stream in (sys.stdout, sys.stderr):
    try:
      if stream is not None and not stream.closed:
        stream.flush()
    except OSError:
      code = code or 120  # as the interpreter does
  if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
  os._exit(code)
