"""The task's own process: from a fork of the supervisor to the first line of the program.

`be_born` is all that can be done before the task is known, and all of the isolation; `become_task`
is the rest. A Python program is run by the fork itself, anything else by exec.
"""

import atexit
import base64
import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import signal
import sys
import termios
import threading
import time
import types

from sandbox_runner.guest.kernel import (
  FIRST_FD,
  LAST_FD,
  PR_SET_DUMPABLE,
  TASK_ID,
  check,
  libc,
  prctl,
  write_text,
)

PR_SET_SECCOMP, PR_CAPBSET_DROP = 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
CANNOT_RUN, NOT_FOUND = 126, 127  # exit codes of a shell
OUR_FAULTS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO)


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


def limit_resources(task):
  """By those limits that each task has of its own; see `be_born` for the others."""
  limits = {resource.RLIMIT_CPU: (task["cpu_s"], task["cpu_s"] + 1)}
  if task["address_space"]:
    limits[resource.RLIMIT_AS] = (task["address_space"],) * 2
  if task["processes"]:
    limits[resource.RLIMIT_NPROC] = (task["processes"],) * 2
  for which, pair in limits.items():
    resource.setrlimit(which, pair)


def write_files(files, inbox):
  """Only called as the task's user, in its own box, in /work."""
  for name, size in files:
    os.makedirs(os.path.dirname(os.path.join("/work", name)), exist_ok=True)
    with open(name, "wb") as f:
      inbox.copy(size, f)


def restore_entries(entries, inbox):
  """Makes the work directory what a snapshot of it was; modes and times last."""
  for name, kind, _, _, size in entries:
    if kind == "dir":
      os.mkdir(name)
    elif kind == "link":
      os.symlink(os.fsdecode(inbox.read(size)), name)
    else:
      with open(name, "wb") as f:
        inbox.copy(size, f)
  for name, kind, mode, mtime_ns, _ in reversed(entries):
    if kind != "link":
      os.chmod(name, mode)
    os.utime(name, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def be_born(supervisor, box, ends, inbox):
  """From the supervisor's fork to a process that lacks nothing but its task."""
  prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to nobody we are
  for fd in supervisor.setup["cgroup_fds"]:
    os.write(fd, b"0")
  if box.shares_memory_limit:
    write_text("/proc/self/oom_score_adj", "1000")  # before the supervisor
  signal.set_wakeup_fd(-1)
  for which in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(which, signal.SIG_DFL)
  os.setsid()
  box.enter()
  for target, fd in enumerate(ends.for_task):
    os.dup2(fd, target)
  ends.ours.detach()  # its number is another descriptor's from here on
  inbox.move_to(FIRST_FD)
  os.closerange(FIRST_FD + 1, LAST_FD)
  drop_privileges(box.own_users)
  os.umask(0o022)
  os.chdir("/work")
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
  code = base64.b64decode(supervisor.setup["seccomp"])
  if code:
    buffer = ctypes.create_string_buffer(code)
    program = SockFprog(len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(program))
  prctl(PR_SET_DUMPABLE, 0)  # until it is the task, nobody may look into it


def rehearse():
  """Goes once through what a task of Python will do, so that its memory is this process's own.

  Each page that is written to for the first time costs a microsecond or two, now and not then.
  """
  task = json.loads('{"argv": ["python3", "-c", ""], "env": {"A": ""}, "cwd": "", "wall_s": 1.5}')
  os.listdir("/")
  main = types.ModuleType("__main__")
  main.__dict__["__builtins__"] = __builtins__
  os.environ.clear()
  os.environ.update(task["env"])
  exec(compile(b"print(end='')", "<string>", "exec", dont_inherit=True), main.__dict__)
  main.__dict__.clear()
  gc.collect()
  sys.stdout.flush()


def become_task(inbox, image_env, inherits):
  """Waits for the task, and lets its program find what it asked for. Returns its header.

  Does not return if there is none, or nothing but its files was wanted. Where the box `inherits`
  what an earlier step has written, that step may be why files cannot be: it left a directory in
  their place, or no room. The program then ends as one that cannot be run.
  """
  sizes = inbox.wait()
  if sizes is None:
    os._exit(0)
  used_us = time.process_time_ns() // 1000
  prctl(PR_SET_DUMPABLE, 1)  # a program may look at its own /proc/self
  inbox.offer_counters(used_us)
  header_size, _, terminal = sizes
  task = json.loads(inbox.read(header_size))
  task["env"] = {**image_env, **task["env"]}
  for slave in terminal:
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for target in range(FIRST_FD):
      os.dup2(slave, target)
    os.close(slave)
  try:
    if task["entries"] is not None:
      restore_entries(task["entries"], inbox)
    write_files(task["files"], inbox)
  except OSError as e:
    if not inherits or not task["argv"] or e.errno in OUR_FAULTS:
      raise
    refuse(e.filename or "files", e, CANNOT_RUN)
  if not task["argv"]:
    os._exit(0)  # the files were all that was wanted
  limit_resources(task)
  return task


def refuse(name, error, code):
  """Ends as a shell does that cannot run a program: this is the program's end, not a failure."""
  os.write(2, f"{name}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
  os._exit(code)


def enter_directory(path):
  """The one in which the program starts, below the work directory; made if it is not there."""
  try:
    os.makedirs(path, exist_ok=True)
    os.chdir(path)
  except OSError as e:
    refuse(path, e, CANNOT_RUN)


def execute(argv, env):
  """Does not return. Raises OSError if it is not the program's fault that it cannot be run."""
  arguments = [os.fsencode(a) for a in argv]
  variables = {os.fsencode(k): os.fsencode(v) for k, v in env.items()}
  try:
    os.execvpe(arguments[0], arguments, variables)
  except OSError as e:
    if e.errno in OUR_FAULTS:
      raise
    found = e.errno not in (errno.ENOENT, errno.ENOTDIR) or is_there(argv[0], env)
    refuse(argv[0], e, CANNOT_RUN if found else NOT_FOUND)


def is_there(program, env):
  """True if a file has this name: then it is its interpreter that is missing."""
  if "/" in program:
    return os.path.exists(program)
  directories = env.get("PATH", os.defpath).split(os.pathsep)
  return any(os.path.exists(os.path.join(d, program)) for d in directories)


def python_program(task, preloaded):
  """(path or None, source, sys.argv) if a fork can stand for `python3 FILE|-c CODE ...`."""
  argv, env = task["argv"], task["env"]
  if not task["fork"] or len(argv) < 2 or argv[0] not in ("python3", "python", sys.executable):
    return None
  if any(name.startswith(("PYTHON", "LD_")) for name in env):
    return None  # the interpreter would read these when it starts
  script = None if argv[1] == "-c" else argv[1]
  if len(argv) < 3 if script is None else script.startswith("-") or not os.path.isfile(script):
    return None
  try:
    directory = os.path.dirname(os.path.realpath(script)) if script else "."
    own = {name.removesuffix(".py") for name in os.listdir(directory)}
    if own & preloaded:
      return None  # a file of the task's has to win over the module that is loaded here
    if script is None:
      return None, os.fsencode(argv[2]), ["-c", *argv[3:]]
    with open(script, "rb") as f:
      return os.path.abspath(script), f.read(), argv[1:]
  except OSError:
    return None  # it is for a new interpreter to say so


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
