"""The call filter of every task under bwrap: what it denies, and how its programs are made.

The kernel takes a filter as BPF code. libseccomp makes that code from the lists below, for each
processor; `python -m sandbox_runner.seccomp` writes it to `seccomp_programs.py`, so that a machine
that runs sandboxes needs no libseccomp. A denied call returns EPERM. `clone3`, whose flags a filter
cannot see, returns ENOSYS, upon which the C library uses `clone`.
"""

import base64
import ctypes
import ctypes.util
import errno
import os
import platform
import tempfile
import textwrap
from pathlib import Path

from sandbox_runner import seccomp_programs

DENIED = {
  "kernel surface that has had more than its share of holes, and that no task needs": (
    "bpf io_uring_setup io_uring_enter io_uring_register userfaultfd perf_event_open "
    "fanotify_init name_to_handle_at open_by_handle_at lookup_dcookie nfsservctl vmsplice"
  ),
  "keys, which outlive the task that made them": "add_key request_key keyctl",
  "namespaces and mounts": (
    "unshare setns mount umount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig "
    "fsmount fspick mount_setattr"
  ),
  "other processes": ("ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise"),
  "the machine": (
    "acct adjtimex clock_adjtime clock_settime settimeofday stime create_module init_module "
    "finit_module delete_module get_kernel_syms query_module kexec_load kexec_file_load ioperm "
    "iopl modify_ldt mbind migrate_pages move_pages set_mempolicy quotactl quotactl_fd reboot "
    "sethostname setdomainname swapon swapoff syslog _sysctl sysfs uselib ustat vhangup vm86 "
    "vm86old"
  ),
}
NEW_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
SOCKET_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK
LAST_FAMILY = 63
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, GREATER_EQUAL, MASKED_EQUAL = 4, 5, 7


class _Comparison(ctypes.Structure):
  _fields_ = (
    ("arg", ctypes.c_uint),
    ("op", ctypes.c_int),
    ("a", ctypes.c_uint64),
    ("b", ctypes.c_uint64),
  )


def task_filter() -> bytes:
  """BPF code for this machine's processor; empty if there is none for it."""
  return base64.b64decode(seccomp_programs.PROGRAMS.get(platform.machine(), ""))


def build(architecture: int) -> bytes:
  """BPF code for one processor, by libseccomp. Raises OSError if that is not installed."""
  name = ctypes.util.find_library("seccomp")
  if name is None:
    raise OSError("libseccomp is not installed; apt-get install libseccomp2")
  lib = ctypes.CDLL(name)
  lib.seccomp_init.restype = ctypes.c_void_p
  lib.seccomp_init.argtypes = [ctypes.c_uint32]
  lib.seccomp_arch_native.restype = ctypes.c_uint32
  lib.seccomp_rule_add_array.argtypes = [
    *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
    ctypes.POINTER(_Comparison),
  ]
  for call in (lib.seccomp_arch_add, lib.seccomp_arch_remove):
    call.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
  lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
  lib.seccomp_release.argtypes = [ctypes.c_void_p]
  context = lib.seccomp_init(ALLOW)
  if architecture != lib.seccomp_arch_native():
    lib.seccomp_arch_add(context, architecture)
    lib.seccomp_arch_remove(context, lib.seccomp_arch_native())

  def deny(call: str, code: int = errno.EPERM, *conditions: tuple[int, int, int, int]) -> None:
    number = lib.seccomp_syscall_resolve_name(call.encode())
    if number == -1:
      return  # a call that this libseccomp does not know by name
    array = (_Comparison * len(conditions))(*conditions)
    result = lib.seccomp_rule_add_array(context, ERRNO | code, number, len(conditions), array)
    if result < 0 and number >= 0:
      raise OSError(-result, f"rule for {call}")

  for calls in DENIED.values():
    for call in calls.split():
      deny(call)
  deny("clone3", errno.ENOSYS)
  for bit in range(32):
    if NEW_NAMESPACE_FLAGS >> bit & 1:
      deny("clone", errno.EPERM, (0, MASKED_EQUAL, 1 << bit, 1 << bit))
  for family in range(LAST_FAMILY):
    if family not in SOCKET_FAMILIES:
      deny("socket", errno.EAFNOSUPPORT, (0, EQUAL, family, 0))
  deny("socket", errno.EAFNOSUPPORT, (0, GREATER_EQUAL, LAST_FAMILY, 0))
  with tempfile.TemporaryFile() as f:
    if lib.seccomp_export_bpf(context, f.fileno()) < 0:
      raise OSError("libseccomp could not export the filter")
    lib.seccomp_release(context)
    return os.pread(f.fileno(), 1 << 20, 0)


def main() -> None:
  lines = ['"""BPF code of the call filter, made by `python -m sandbox_runner.seccomp`."""', ""]
  lines.append("PROGRAMS = {")
  for name, architecture in ARCHITECTURES.items():
    lines.append(f'  "{name}": (')
    text = base64.b64encode(build(architecture)).decode()
    lines += [f'    "{part}"' for part in textwrap.wrap(text, 92)]
    lines.append("  ),")
  lines.append("}")
  (Path(__file__).parent / "seccomp_programs.py").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
