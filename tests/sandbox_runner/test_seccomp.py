"""The filters of system calls: made from the policies, and what they do in real sandboxes."""

import base64
import ctypes.util
import errno
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bpf_machine import ALLOW, ERRNO, KILL_PROCESS, verdict
from sandbox_driver import Driver

from sandbox_runner import Outcome, Request, seccomp
from sandbox_runner.seccomp.build import ARCHITECTURES, build_all, library
from sandbox_runner.seccomp.programs import PROGRAMS

POLICIES = {name: json.loads(path.read_text()) for name, path in seccomp.POLICIES.items()}
NEEDS_LIBSECCOMP = pytest.mark.skipif(
  ctypes.util.find_library("seccomp") is None and not os.environ.get("PTJAX_REQUIRE_DOCKER"),
  reason="libseccomp makes the code",
)
# Numbers of calls, as the kernel's tables have them.
NUMBERS = {
  "x86_64": {
    **{"read": 0, "ioctl": 16, "socket": 41, "setsockopt": 54, "clone": 56, "execve": 59},
    **{"ptrace": 101, "personality": 135, "prctl": 157, "mount": 165, "keyctl": 250},
    **{"unshare": 272, "socketpair": 53, "bpf": 321, "io_uring_setup": 425, "clone3": 435},
  },
  "aarch64": {
    **{"read": 63, "ioctl": 29, "socket": 198, "setsockopt": 208, "clone": 220, "execve": 221},
    **{"ptrace": 117, "personality": 92, "prctl": 167, "mount": 40, "keyctl": 219},
    **{"unshare": 97, "socketpair": 199, "bpf": 280, "io_uring_setup": 425, "clone3": 435},
  },
}
HIGH = 1 << 32  # the kernel reads only the low half of an int
EXPECTED = [  # call, arguments, errors of the supervisor's and of the task's filter
  ("read", (), 0, 0),
  ("execve", (), 0, 0),
  ("mount", (), 0, errno.EPERM),
  ("unshare", (), 0, errno.EPERM),
  ("ptrace", (), errno.ENOSYS, errno.EPERM),
  ("keyctl", (), errno.ENOSYS, errno.EPERM),
  ("bpf", (), errno.ENOSYS, errno.EPERM),
  ("io_uring_setup", (), errno.ENOSYS, errno.EPERM),
  ("clone3", (), 0, errno.ENOSYS),
  ("clone", (0x00010F00,), 0, 0),  # as for a thread
  ("clone", (17,), 0, 0),  # as for a child
  ("clone", (0x10000011,), 0, errno.EPERM),  # CLONE_NEWUSER
  ("clone", (0x00020011,), 0, errno.EPERM),  # CLONE_NEWNS
  ("socket", (1, 1, 0), 0, 0),
  ("socket", (2, 1, 0), 0, 0),
  ("socket", (2, 1, 6), 0, 0),
  ("socket", (10, 2, 17), 0, 0),
  ("socket", (16, 3, 0), 0, 0),
  ("socket", (16, 3, 12), errno.ENOSYS, 0),  # NETLINK_NETFILTER
  ("socket", (2, 1, 132), errno.ENOSYS, 0),  # SCTP
  ("socket", (2, 1, 262), errno.ENOSYS, 0),  # MPTCP
  ("socket", (17, 3, 0), errno.ENOSYS, errno.EAFNOSUPPORT),  # PACKET
  ("socket", (38, 5, 0), errno.ENOSYS, errno.EAFNOSUPPORT),  # ALG
  ("socket", (40, 1, 0), errno.ENOSYS, errno.EAFNOSUPPORT),  # VSOCK
  ("socket", (15, 3, 2), errno.ENOSYS, errno.EAFNOSUPPORT),  # KEY
  ("socket", (HIGH | 40, 1, 0), errno.ENOSYS, errno.EAFNOSUPPORT),
  ("socketpair", (1, 1, 0), 0, 0),
  ("socketpair", (30, 1, 0), 0, errno.EAFNOSUPPORT),  # TIPC
  ("ioctl", (0, 0x5401), 0, 0),  # TCGETS
  ("ioctl", (0, 0x5413), 0, 0),  # TIOCGWINSZ
  ("ioctl", (0, 0x5412), 0, errno.EPERM),  # TIOCSTI
  ("ioctl", (0, HIGH | 0x5412), 0, errno.EPERM),
  ("ioctl", (0, 0x541C), 0, errno.EPERM),  # TIOCLINUX
  ("ioctl", (0, 0x5423), 0, errno.EPERM),  # TIOCSETD
  ("setsockopt", (3, 6, 1), 0, 0),  # TCP_NODELAY
  ("setsockopt", (3, 1, 31), 0, 0),
  ("setsockopt", (3, 6, 31), 0, errno.EPERM),  # TCP_ULP
  ("personality", (0,), 0, 0),
  ("personality", (0xFFFFFFFF,), 0, 0),
  ("personality", (0x0040000,), errno.ENOSYS, 0),  # ADDR_NO_RANDOMIZE
  ("personality", (0x0400000,), errno.ENOSYS, 0),  # READ_IMPLIES_EXEC
  ("prctl", (15,), 0, 0),  # PR_SET_NAME
  ("prctl", (HIGH | 15,), 0, 0),
  ("prctl", (35,), errno.ENOSYS, 0),  # PR_SET_MM
  ("prctl", (0x59616D61,), errno.ENOSYS, 0),  # PR_SET_PTRACER
]


def code(policy: str, machine: str) -> bytes:
  return base64.b64decode(PROGRAMS[policy, machine])


def answer(error: int) -> int:
  return ERRNO | error if error else ALLOW


@NEEDS_LIBSECCOMP
def test_committed_programs_are_those_of_the_policies():
  assert {key: base64.b64decode(text) for key, text in PROGRAMS.items()} == build_all()


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(("call", "arguments", "supervisor", "task"), EXPECTED)
def test_verdicts(machine: str, call: str, arguments: tuple, supervisor: int, task: int):
  where = (ARCHITECTURES[machine][1], NUMBERS[machine][call])
  assert verdict(code("supervisor", machine), *where, *arguments) == answer(supervisor)
  assert verdict(code("task", machine), *where, *arguments) == answer(task)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_tomorrow_are_unknown(machine: str):
  architecture = ARCHITECTURES[machine][1]
  for number in range(470, 2000):
    assert verdict(code("supervisor", machine), architecture, number) == answer(errno.ENOSYS)


@pytest.mark.parametrize("policy", POLICIES)
def test_other_abis_end_the_process(policy: str):
  x86, arm = (ARCHITECTURES[m][1] for m in ("x86_64", "aarch64"))
  i386, arm32 = 0x40000003, 0x40000028
  for own, others in (("x86_64", (i386, arm, arm32)), ("aarch64", (x86, i386, arm32))):
    for other in others:
      assert verdict(code(policy, own), other, 20) == KILL_PROCESS
  x32_getpid = 0x40000000 | 39
  assert verdict(code(policy, "x86_64"), x86, x32_getpid) == KILL_PROCESS


def groups(policy: str, action: str, whole: bool = True) -> set[str]:
  """Names of the calls that have this action, whatever their arguments if `whole`."""
  return {
    name
    for group in POLICIES[policy]["syscalls"]
    if group["action"] == action and not (whole and "args" in group)
    for name in group["names"]
  }


def test_policies_fit_each_other():
  """What tasks are denied is not there for all, but for what makes boxes."""
  denied = groups("task", "SCMP_ACT_ERRNO")
  allowed = groups("supervisor", "SCMP_ACT_ALLOW")
  assert denied & allowed == {"mount", "umount2", "setns", "unshare", "clone3"}
  by_capability = [g for g in POLICIES["supervisor"]["syscalls"] if "includes" in g]
  assert [set(g["names"]) for g in by_capability] == [{"mount", "umount2", "setns", "unshare"}]
  for policy in POLICIES.values():
    assert all(group["comment"] for group in policy["syscalls"])


def denied_numbers() -> dict[str, int]:
  """The calls that tasks are denied whatever the arguments, by this processor's numbers."""
  lib = library()
  found = {
    name: lib.seccomp_syscall_resolve_name(name.encode())
    for name in groups("task", "SCMP_ACT_ERRNO")
  }
  return {name: number for name, number in found.items() if number >= 0}


CALL_ALL = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, *arguments in json.loads(sys.argv[1]):
  ctypes.set_errno(0)
  words = [ctypes.c_long(a) for a in (*arguments, *[0] * 6)][:6]
  failed = libc.syscall(ctypes.c_long(number), *words) == -1
  found[name] = errno.errorcode.get(ctypes.get_errno()) if failed else "allowed"
print(json.dumps(found))
"""


@NEEDS_LIBSECCOMP
def test_denied_calls_are_denied_in_a_sandbox(driver: Driver):
  """Each denied call, and each denied argument, is tried for real by a task."""
  numbers = NUMBERS[platform.machine()]
  calls = [(name, number) for name, number in denied_numbers().items()]
  wanted = {name: "ENOSYS" if name == "clone3" else "EPERM" for name, _ in calls}
  for call, arguments, _, error in EXPECTED:
    if error and arguments:
      calls.append((f"{call} {arguments}", numbers[call], *arguments))
      wanted[calls[-1][0]] = errno.errorcode[error]
  assert len(calls) > 60
  request = Request(("python3", "-c", CALL_ALL, json.dumps(calls)))
  result = driver.run(driver.pool.run(request))
  assert result.outcome == Outcome.exit, result
  assert json.loads(result.stdout) == wanted


def on_this_kernel(driver: Driver) -> None:
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("gVisor's kernel answers its guest's calls; this kernel's filters are gVisor's own")


@NEEDS_LIBSECCOMP
def test_unlisted_arguments_are_unknown_in_a_sandbox(driver: Driver):
  """docker 20 answers EPERM where the policy says ENOSYS: it does not know `defaultErrnoRet`."""
  on_this_kernel(driver)
  calls = [
    (f"{call} {arguments}", NUMBERS[platform.machine()][call], *arguments)
    for call, arguments, supervisor, task in EXPECTED
    if supervisor and not task
  ]
  request = Request(("python3", "-c", CALL_ALL, json.dumps(calls)))
  found = json.loads(driver.run(driver.pool.run(request)).stdout)
  assert set(found) == {name for name, *_ in calls}
  assert set(found.values()) <= {"ENOSYS", "EPERM"}


OTHER_ABI = """
import ctypes, mmap, sys
code = {"i386": bytes.fromhex("b814000000cd80c3"), "x32": bytes.fromhex("b8270000400f05c3")}
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code[sys.argv[1]])
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64")
@pytest.mark.parametrize("abi", ["i386", "x32"])
def test_other_abis_in_a_sandbox(driver: Driver, abi: str):
  on_this_kernel(driver)
  result = driver.run(driver.pool.run(Request(("python3", "-c", OTHER_ABI, abi))))
  assert (result.outcome, result.signal) == (Outcome.signal, signal.SIGSYS), result


ORDINARY = """
import multiprocessing, os, pty, signal, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(4) as executor:
  assert sum(executor.map(len, ["ab"] * 100)) == 200
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
assert os.popen("echo popen").read() == "popen\\n"
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=queue.put, args=(7,))
child.start()
assert queue.get() == 7
child.join()
one, two = socket.socketpair()
one.sendall(b"x")
assert two.recv(1) == b"x"
with socket.socket(socket.AF_UNIX) as server:
  server.bind("socket")
  server.listen()
with socket.create_server(("127.0.0.1", 0)) as server:
  with socket.create_connection(server.getsockname()) as client:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
with tempfile.NamedTemporaryFile() as f:
  os.sendfile(f.fileno(), os.open("main.py", os.O_RDONLY), 0, 10)
master, slave = pty.openpty()
os.get_terminal_size(slave)
os.mkfifo("pipe")
os.sched_getaffinity(0)
signal.setitimer(signal.ITIMER_REAL, 5)
print("ordinary")
"""


@pytest.mark.parametrize("fork", [True, False], ids=["fork", "exec"])
def test_ordinary_programs_work(driver: Driver, fork: bool):
  program = ("python3", "main.py") if fork else ("python3", "-B", "main.py")
  request = Request(program, {"main.py": ORDINARY.encode()})
  result = driver.run(driver.pool.run(request))
  assert (result.outcome, result.exit_code, result.stdout) == (Outcome.exit, 0, b"ordinary\n"), (
    result
  )


def test_the_supervisor_has_a_filter_too(driver: Driver):
  on_this_kernel(driver)
  (vessel, *_) = [s.vessel for s in driver.pool.idle()]
  if driver.pool.backend.name == "bwrap":
    fdinfo = Path(f"/proc/self/fdinfo/{vessel.supervisor}").read_text()
    pid = fdinfo.partition("Pid:")[2].split()[0]
  else:
    command = ["docker", "inspect", "--format", "{{.State.Pid}}", vessel.sandbox]
    pid = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  status = Path(f"/proc/{pid}/status").read_text()
  assert "Seccomp:\t2" in status
  assert "NoNewPrivs:\t1" in status


@NEEDS_LIBSECCOMP
def test_programs_are_written_by_the_command(tmp_path: Path):
  """`python -m sandbox_runner.seccomp.build` gives the committed file."""
  root = Path(seccomp.__file__).parent.parent
  copy = tmp_path / "sandbox_runner"
  subprocess.run(["cp", "-r", str(root), str(copy)], check=True)
  (copy / "seccomp" / "programs.py").write_text("PROGRAMS = {}\n")
  command = [sys.executable, "-m", "sandbox_runner.seccomp.build"]
  subprocess.run(command, cwd=tmp_path, check=True)
  written = (copy / "seccomp" / "programs.py").read_text()
  assert written == (root / "seccomp" / "programs.py").read_text()
