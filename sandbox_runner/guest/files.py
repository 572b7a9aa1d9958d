"""Reads files of a work directory back, when nothing runs in it any more.

Nothing is followed and nothing but a regular file is opened: each directory is opened beneath the
one before it, each with O_NOFOLLOW, and a file's kind is looked at before and after it is opened.
"""

import fnmatch
import hashlib
import itertools
import os
import stat
import time

from sandbox_runner.guest.frames import CHUNK

MAX_PATH, MAX_DEPTH = 4000, 64
BENEATH = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def advance(patterns, name):
  """What is left of these patterns (tuples of parts) below `name`; () is a whole match."""
  left = set()
  for pattern in patterns:
    rest = pattern
    while rest and rest[0] == "**":
      left.add(rest)
      rest = rest[1:]
    if rest and fnmatch.fnmatchcase(name, rest[0]):
      left.add(rest[1:])
  return left


def is_whole(patterns):
  return () in patterns or ("**",) in patterns


class Reading:
  """One walk through a work directory. `send(header, blob)` takes what it finds.

  Each regular file is sent as frames `{"part": true}` with its bytes, then one that names it. What
  was asked for and is not sent is named with the reason. If the order is for the whole `tree`, then
  directories (each before what is in it) and links are sent as well, all with modes and times.
  """

  def __init__(self, order, send):
    self.send, self.tree = send, order["tree"]
    self.bytes_left, self.entries_left = order["bytes"], order["entries"]
    self.deadline = time.monotonic() + order["seconds"]
    self.patterns = {tuple(p.split("/")) for p in order["patterns"]}
    self.cut = ""

  def walk(self, root):
    """The frame that has to follow the last file, once nothing is left to do."""
    self._directory(root, (), self.patterns)
    return {"end": True, "cut": self.cut}

  def _directory(self, fd, path, patterns):
    for name in self._names(fd, patterns):
      left = advance(patterns, name)
      if not left:
        continue
      self.entries_left -= 1
      if self.entries_left < 0 or time.monotonic() > self.deadline:
        self.cut = "entries" if self.entries_left < 0 else "time"
        return
      try:
        self._entry(fd, name, (*path, name), left)
      except OSError as e:
        self._leave_out((*path, name), f"cannot be read: {e.strerror}")
      if self.cut:
        return

  def _names(self, fd, patterns):
    """Of the entries that may match; a directory is not listed for names that are known."""
    heads = {pattern[0] for pattern in patterns if pattern}
    if not any(set(head) & set("*?[") for head in heads):
      return sorted(heads)
    with os.scandir(fd) as entries:
      return sorted(e.name for e in itertools.islice(entries, self.entries_left + 1))

  def _entry(self, fd, name, path, left):
    try:
      status = os.lstat(name, dir_fd=fd)
    except FileNotFoundError:
      return  # a name that was asked for and is not there
    if stat.S_ISDIR(status.st_mode):
      if len(path) >= MAX_DEPTH:
        self._leave_out(path, "too deep")
        return
      if self.tree:
        self._send_entry(status, path, "dir", b"")
      child = os.open(name, BENEATH | os.O_DIRECTORY, dir_fd=fd)
      try:
        self._directory(child, path, left - {()})
      finally:
        os.close(child)
    elif not is_whole(left):
      return
    elif stat.S_ISREG(status.st_mode):
      self._regular(fd, name, path)
    elif self.tree and stat.S_ISLNK(status.st_mode):
      self._send_entry(status, path, "link", os.fsencode(os.readlink(name, dir_fd=fd)))
    else:
      kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
      self._leave_out(path, kind)

  def _regular(self, fd, name, path):
    if len(os.fsencode("/".join(path))) > MAX_PATH:
      self._leave_out(path, "too long a path")
      return
    file = os.open(name, BENEATH | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=fd)
    try:
      status = os.fstat(file)
      if not stat.S_ISREG(status.st_mode):
        self._leave_out(path, "not a regular file")
      elif status.st_size > self.bytes_left:
        self._leave_out(path, "too large")
      else:
        self._content(file, status, path)
    finally:
      os.close(file)

  def _content(self, file, status, path):
    digest, size = hashlib.sha256(), 0
    while size < status.st_size:
      data = os.read(file, min(CHUNK, status.st_size - size))
      if not data:
        break
      digest.update(data)
      size += len(data)
      self.send({"part": True}, data)
    self.bytes_left -= size
    self._name(status, path, "file", digest)

  def _send_entry(self, status, path, kind, content):
    self.send({"part": True}, content)
    self._name(status, path, kind, hashlib.sha256(content))

  def _name(self, status, path, kind, digest):
    header = {"file": "/".join(path), "kind": kind, "sha256": digest.hexdigest()}
    if self.tree:
      header |= {"mode": stat.S_IMODE(status.st_mode), "mtime_ns": status.st_mtime_ns}
    self.send(header)

  def _leave_out(self, path, why):
    while len(os.fsencode("/".join(path))) > MAX_PATH:
      path = path[:-1]
    self.send({"left_out": "/".join(path), "why": why})
