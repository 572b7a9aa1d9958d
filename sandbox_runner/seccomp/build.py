"""Makes BPF code of the policies, by libseccomp, for each processor.

`python -m sandbox_runner.seccomp.build` writes it to `programs.py`, so that a machine that runs
sandboxes needs no libseccomp. Call numbers of another ABI of the same processor (32-bit, x32) end
the process.
"""

import base64
import ctypes
import ctypes.util
import json
import os
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

from sandbox_runner.seccomp import POLICIES

ARCHITECTURES = {  # as platform.machine() says -> (docker's name, the kernel's number)
  "x86_64": ("SCMP_ARCH_X86_64", 0xC000003E),
  "aarch64": ("SCMP_ARCH_AARCH64", 0xC00000B7),
}
CAPABILITIES = frozenset({"CAP_SYS_ADMIN"})  # of the supervisor under bubblewrap
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5, "SCMP_CMP_MASKED_EQ": 7}
ON_OTHER_ABI, OPTIMIZE, BY_TREE = 2, 8, 2  # attributes of a filter
EPERM, NAME_UNKNOWN = 1, -1


class _Comparison(ctypes.Structure):
  _fields_ = (
    ("arg", ctypes.c_uint),
    ("op", ctypes.c_int),
    ("a", ctypes.c_uint64),
    ("b", ctypes.c_uint64),
  )


def library() -> ctypes.CDLL:
  """Raises OSError if libseccomp is not installed."""
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
  lib.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
  lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
  lib.seccomp_release.argtypes = [ctypes.c_void_p]
  return lib


def action(entry: dict, name: str, error: str) -> int:
  """The action that `entry` has under these keys, as libseccomp's number."""
  return {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_ERRNO": ERRNO | entry.get(error, EPERM),
  }[entry[name]]


def comparisons(conditions: Iterable[dict]) -> list[_Comparison]:
  return [
    _Comparison(c["index"], OPERATORS[c["op"]], c["value"], c.get("valueTwo", 0))
    for c in conditions
  ]


def build(policy: dict, machine: str) -> bytes:
  """BPF code for one processor. Raises OSError for what libseccomp does not take."""
  lib = library()
  docker_name, architecture = ARCHITECTURES[machine]
  if docker_name not in [a["architecture"] for a in policy["archMap"]]:
    raise OSError(f"the policy is not for {docker_name}")
  context = lib.seccomp_init(action(policy, "defaultAction", "defaultErrnoRet"))
  if architecture != lib.seccomp_arch_native():
    lib.seccomp_arch_add(context, architecture)
    lib.seccomp_arch_remove(context, lib.seccomp_arch_native())
  lib.seccomp_attr_set(context, ON_OTHER_ABI, KILL_PROCESS)
  lib.seccomp_attr_set(context, OPTIMIZE, BY_TREE)
  for group in policy["syscalls"]:
    if set(group.get("includes", {}).get("caps", ())) <= CAPABILITIES:
      conditions = comparisons(group.get("args", ()))
      array = (_Comparison * len(conditions))(*conditions)
      for name in group["names"]:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number == NAME_UNKNOWN:
          raise OSError(f"this libseccomp knows no call {name!r}; use 2.5.4 of Debian, or later")
        result = lib.seccomp_rule_add_array(
          context, action(group, "action", "errnoRet"), number, len(conditions), array
        )
        if result < 0 and number >= 0:  # below 0 are calls that this processor may not have
          raise OSError(-result, f"rule for {name}")
  with tempfile.TemporaryFile() as f:
    if lib.seccomp_export_bpf(context, f.fileno()) < 0:
      raise OSError("libseccomp could not export the filter")
    lib.seccomp_release(context)
    return os.pread(f.fileno(), 1 << 20, 0)


def build_all() -> dict[tuple[str, str], bytes]:
  """(policy, machine) -> BPF code."""
  return {
    (name, machine): build(json.loads(path.read_text()), machine)
    for name, path in POLICIES.items()
    for machine in ARCHITECTURES
  }


def main() -> None:
  lines = ['"""BPF code of the filters, made by `python -m sandbox_runner.seccomp.build`."""', ""]
  lines.append("PROGRAMS = {")
  for key, code in build_all().items():
    lines.append(f'  ("{key[0]}", "{key[1]}"): (')
    lines += [f'    "{part}"' for part in textwrap.wrap(base64.b64encode(code).decode(), 92)]
    lines.append("  ),")
  lines.append("}")
  (Path(__file__).parent / "programs.py").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
