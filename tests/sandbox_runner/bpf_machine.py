"""Runs BPF code of seccomp filters here, as the kernel does: the few instructions that they use."""

import struct

INSTRUCTION = struct.Struct("=HBBI")
CALL = struct.Struct("=iIQ6Q")  # struct seccomp_data
LOAD, AND, JUMP, RETURN = 0x20, 0x54, 0x05, 0x06
CONDITIONS = {
  0x15: lambda value, k: value == k,
  0x25: lambda value, k: value > k,
  0x35: lambda value, k: value >= k,
  0x45: lambda value, k: value & k != 0,
}
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


def verdict(code: bytes, architecture: int, number: int, *arguments: int) -> int:
  """What the filter returns for a call."""
  words = [a & (1 << 64) - 1 for a in arguments] + [0] * (6 - len(arguments))
  data = CALL.pack(number, architecture, 0, *words)
  program = list(INSTRUCTION.iter_unpack(code))
  at, value = 0, 0
  while True:
    operation, if_true, if_false, k = program[at]
    at += 1
    if operation == RETURN:
      return k
    if operation == LOAD:
      (value,) = struct.unpack_from("=I", data, k)
    elif operation == AND:
      value &= k
    elif operation == JUMP:
      at += k
    else:
      at += if_true if CONDITIONS[operation](value, k) else if_false
