"""reasoning-gym's scorers in a process of their own, which can be killed.

They read what a policy has written, with parsers that take as long and as much memory as the text
makes them.
"""

import asyncio
import atexit
import functools
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ptjax.domains.scorer_process import LENGTH, MALFORMED, READY
from ptjax.rewards.failures import InfraFailure, Unscorable

START_S = 60.0
DEADLINE_S = 5.0


class Scorer:
  """One process, started when first asked and anew after it had to be killed."""

  def __init__(self, deadline_s: float = DEADLINE_S):
    self._deadline_s = deadline_s
    self._process: subprocess.Popen[bytes] | None = None
    self._lock = threading.Lock()
    atexit.register(self.close)

  async def score(
    self,
    generator: str,
    parameters: Mapping[str, Any],
    level: int | None,
    answer: str,
    entry: Mapping[str, Any],
  ) -> float:
    """What the generator's scorer gives; 0 where it cannot read the answer.

    Raises:
      Unscorable: it took longer than the deadline, or took its process down.
      InfraFailure: the process cannot be started.
    """
    request = pickle.dumps((generator, tuple(parameters.items()), level, answer, dict(entry)))
    return await asyncio.to_thread(self._ask, LENGTH.pack(len(request)) + request)

  def close(self) -> None:
    """Ends the process; a later question starts another."""
    if self._process is not None:
      self._process.kill()
      self._process.communicate()
      self._process = None

  def _ask(self, request: bytes) -> float:
    with self._lock:
      process = self._process or self._start()
      assert process.stdin is not None
      try:
        process.stdin.write(request)
        process.stdin.flush()
      except BrokenPipeError as error:
        self.close()
        raise InfraFailure(
          "the scorer's process was gone; the next answer starts another"
        ) from error
      line = self._line(self._deadline_s)
      if line:
        return 0.0 if line == MALFORMED else float(line)
      self.close()
      how = f"took over {self._deadline_s:g} s" if line is None else "took its process down"
      raise Unscorable(f"the scorer {how}")

  def _start(self) -> subprocess.Popen[bytes]:
    self._process = subprocess.Popen(
      [sys.executable, "-m", "ptjax.domains.scorer_process"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for the run, which ends this one in its turn
    )
    if self._line(START_S) != READY:
      self.close()
      raise InfraFailure("the scorer's process did not start; is reasoning-gym installed?")
    return self._process

  def _line(self, seconds: float) -> bytes | None:
    """The next reply; None where there is none in time, nothing where the process has ended."""
    assert self._process is not None
    assert self._process.stdout is not None
    pipe, deadline, line = self._process.stdout, time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
      if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return None
      part = os.read(pipe.fileno(), 64)
      if not part:
        return b""
      line += part
    return line


@functools.cache
def shared() -> Scorer:
  """The one of this process."""
  return Scorer()
