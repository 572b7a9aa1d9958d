"""Frames between the host and the supervisor: two big-endian lengths, a JSON header and a blob."""

import json
import os
import struct

LENGTHS = struct.Struct("!II")
MAX_HEADER, MAX_BLOB = 16 << 20, 1 << 30
CHUNK = 1 << 16


def read_exactly(fd, n):
  """n bytes from `fd`; EOFError if the host is gone."""
  parts = []
  while n:
    part = os.read(fd, min(n, 1 << 20))
    if not part:
      raise EOFError
    parts.append(part)
    n -= len(part)
  return b"".join(parts)


def read_frame(fd):
  header, blob = read_raw_frame(fd)
  return json.loads(header), blob


def read_raw_frame(fd):
  """The header is still JSON."""
  header_length, blob_length = LENGTHS.unpack(read_exactly(fd, LENGTHS.size))
  if header_length > MAX_HEADER or blob_length > MAX_BLOB:
    raise EOFError
  return read_exactly(fd, header_length), read_exactly(fd, blob_length)


def write_frame(fd, header, blob=b""):
  head = json.dumps(header).encode()
  data = memoryview(LENGTHS.pack(len(head), len(blob)) + head + blob)
  while data:
    data = data[os.write(fd, data) :]
