"""The last words of a command, which its terminal hands on late. A slow relay is the terminal."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_runner.guest import terminal as terminal_module
from sandbox_runner.guest.frames import read_frame
from sandbox_runner.guest.supervisor import Supervisor
from sandbox_runner.guest.terminal import Terminal, TerminalWatch

WORDS = b"last words"


class SlowTerminal(Terminal):
  """What is written to its slave end comes out of its master end once `let_go` is set."""

  def __init__(self):
    self._out, self.slave = os.pipe()
    self.master, self._in = os.pipe()
    self.let_go = threading.Event()
    self._relay = threading.Thread(target=self._run)
    self._relay.start()

  def _run(self):
    self.let_go.wait()
    while data := os.read(self._out, 4096):
      os.write(self._in, data)

  def close(self):
    self.let_go.set()
    os.close(self.slave)
    self._relay.join()
    for fd in (self.master, self._in, self._out):
      os.close(fd)


@pytest.fixture
def slow() -> Iterator[SlowTerminal]:
  terminal = SlowTerminal()
  yield terminal
  terminal.close()


def drained(terminal: Terminal, directory: Path, cap: int = 1000) -> tuple[bytes, TerminalWatch]:
  """What a watch hands on when its command has ended."""
  supervisor = object.__new__(Supervisor)  # without taking this process's signals
  frames = os.open(directory / "frames", os.O_CREAT | os.O_RDWR)
  supervisor.control_out = frames
  watch = TerminalWatch(supervisor, None, 0, terminal, {"output_bytes": cap})
  watch.drain()
  os.lseek(frames, 0, os.SEEK_SET)
  handed = b""
  while os.fstat(frames).st_size > os.lseek(frames, 0, os.SEEK_CUR):
    handed += read_frame(frames)[1]
  os.close(frames)
  return handed, watch


def test_words_that_come_late_are_waited_for(slow: SlowTerminal, tmp_path: Path):
  os.write(slow.slave, WORDS)
  threading.Timer(0.3, slow.let_go.set).start()
  handed, watch = drained(slow, tmp_path)
  assert handed == WORDS
  assert watch.why == "exit"


def test_a_terminal_that_never_delivers_is_not_waited_for(
  slow: SlowTerminal, tmp_path: Path, monkeypatch
):
  """A program can stop its terminal: that is its own loss, and no failure of the sandbox."""
  monkeypatch.setattr(terminal_module, "FLUSH_S", 0.1)
  os.write(slow.slave, WORDS)
  handed, watch = drained(slow, tmp_path)
  assert handed == b""
  assert watch.why == "exit"


def test_late_words_over_the_cap(slow: SlowTerminal, tmp_path: Path):
  os.write(slow.slave, WORDS)
  threading.Timer(0.1, slow.let_go.set).start()
  handed, watch = drained(slow, tmp_path, cap=4)
  assert handed == WORDS[:4]
  assert watch.why == "output"


def test_words_that_were_not_waited_for_never_come(tmp_path: Path, monkeypatch):
  terminal = Terminal()
  os.write(terminal.slave, WORDS)
  with monkeypatch.context() as impatient:
    impatient.setattr(terminal_module, "FLUSH_S", -1.0)
    assert drained(terminal, tmp_path)[0] == b""
  os.write(terminal.slave, b"next")
  assert drained(terminal, tmp_path)[0] == b"next"
  terminal.close()
