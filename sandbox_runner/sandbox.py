"""One sandbox and the conversation with its supervisor: a request in, a result out."""

import asyncio
import math
import os
import signal
import time

from sandbox_runner import protocol
from sandbox_runner.backends.base import BOOTSTRAP_LIMIT_S, GUEST, Backend, Usage, Vessel
from sandbox_runner.readback import ReadBack
from sandbox_runner.types import Limits, Outcome, Request, Result, SandboxLost

GRACE_S = 2.0  # how long the supervisor may take to end a task and to answer
CLEAN_S = 15.0  # how long it may take to empty the sandbox after files were read back
USAGE_POLL_S = 0.2
FORK_BOMB = 1000  # refused forks: a program that goes on after an error has long stopped trying
PLAIN_RUN = protocol.Mode()
ENDED_BY_SUPERVISOR = {
  "wall": Outcome.timeout,
  "output": Outcome.output_limit,
  "disk": Outcome.disk_limit,
  "pids": Outcome.pids_limit,
}


class Sandbox:
  """A started supervisor. After SandboxLost it is only good to be closed."""

  def __init__(self, name: str, backend: str, vessel: Vessel):
    self.name, self.backend, self.vessel = name, backend, vessel
    self.runs = 0
    self.tenant: str | None = None
    self.listens = False

  @classmethod
  async def open(cls, name: str, backend: Backend, limits: Limits) -> "Sandbox":
    """Raises SandboxLost if no supervisor answers in time; nothing is left then."""
    vessel = await backend.open(name, limits)
    sandbox = cls(name, backend.name, vessel)
    try:
      async with asyncio.timeout(BOOTSTRAP_LIMIT_S):
        stdin = vessel.stdin
        stdin.write(GUEST)
        stdin.writelines(protocol.frame(vessel.setup))
        await stdin.drain()
        await protocol.read_frame(vessel.stdout, max_blob=0)
        await vessel.started()
    except (TimeoutError, OSError, SandboxLost) as e:
      words = vessel.last_words()
      await vessel.close()
      raise SandboxLost(f"{backend.name} sandbox did not start: {words or e!r}") from e
    except BaseException:
      await vessel.close()
      raise
    return sandbox

  async def run(
    self, request: Request, fork_python: bool, mode: protocol.Mode = PLAIN_RUN
  ) -> Result:
    """Raises SandboxLost if the sandbox went away for a reason that is not the program's."""
    limits, vessel = request.limits, self.vessel
    vessel.prepare(limits)
    space, processes = vessel.rlimits(limits)
    started = time.monotonic()
    self.runs += 1
    self.tenant = request.tenant
    cpu_rlimit = math.ceil(limits.cpu_s)
    pieces = protocol.task_frame(request, space, processes, fork_python, cpu_rlimit, mode)
    output = protocol.Output(limits.output_bytes, mode.on_output)
    answer = asyncio.create_task(self._exchange(pieces, output, mode))
    ended: Outcome | None = None
    back = ReadBack(limits)
    try:
      while not answer.done():
        left = started + limits.wall_s + GRACE_S - time.monotonic()
        if left <= 0:
          raise TimeoutError
        await asyncio.wait((answer,), timeout=min(left, USAGE_POLL_S))
        if not answer.done() and not ended and (ended := overrun(vessel.usage(), limits)):
          self.tell({"end": True})
      report = answer.result()
      usage, wall_s = vessel.usage(), time.monotonic() - started
      if request.copy_out:
        await back.receive(vessel.stdout)
        await self._until_clean()
    except TimeoutError:
      # The supervisor missed its own deadline. The program's time is over, whoever is at fault.
      detail = "the supervisor did not answer in time; the sandbox was ended from outside"
      return self._lost(Outcome.timeout, started, vessel.usage(), output, detail)
    except (SandboxLost, OSError) as e:
      usage = vessel.usage()
      if usage.oom_kills:
        detail = "the kernel ended the supervisor for memory"
        return self._lost(Outcome.oom, started, usage, output, detail)
      if usage.refused_forks:
        detail = "the sandbox ended at its limit of processes"
        return self._lost(Outcome.pids_limit, started, usage, output, detail)
      raise SandboxLost(f"{e}; {vessel.last_words()}") from e
    finally:
      self.listens = False
      answer.cancel()
      await asyncio.wait((answer,))  # which, unlike `await answer`, lets our own cancellation out
      if not answer.cancelled():
        answer.exception()  # has been raised, or came too late to say anything
    cpu_s = max(report.cpu_s, usage.cpu_s or 0.0)
    verdict = judge(report, usage.oom_kills, cpu_s, limits, ended)
    return self._result(verdict, report, output, usage, wall_s, back)

  async def _until_clean(self) -> None:
    """What a run was is known by now; a sandbox that cannot be emptied is not used again."""
    try:
      async with asyncio.timeout(CLEAN_S):
        await protocol.read_frame(self.vessel.stdout, max_blob=0)
    except (TimeoutError, SandboxLost):
      self.runs = -1

  def tell(self, header: dict, blob: bytes = b"") -> bool:
    """Something for the task that runs now. False if it cannot take it yet, or any more."""
    if self.listens:
      self.vessel.stdin.writelines(protocol.frame(header, blob))
    return self.listens

  async def read_back(self, patterns: tuple[str, ...], limits: Limits, tree: bool) -> ReadBack:
    """Files of the work directory while nothing runs. Raises SandboxLost."""
    back = ReadBack(limits, tree)
    stdin = self.vessel.stdin
    try:
      order = protocol.read_order(patterns, limits, tree)
      stdin.writelines(protocol.frame({"read": order}))
      await stdin.drain()
    except OSError as e:
      raise SandboxLost(f"{e}; {self.vessel.last_words()}") from e
    await back.receive(self.vessel.stdout)
    return back

  async def _exchange(
    self, pieces: list[bytes], output: protocol.Output, mode: protocol.Mode
  ) -> protocol.Report:
    stdin = self.vessel.stdin
    for piece in pieces:
      stdin.write(piece)
      await stdin.drain()
    self.listens = True
    if mode.on_start:
      mode.on_start()
    return await protocol.read_report(self.vessel.stdout, output)

  def _lost(
    self, outcome: Outcome, started: float, usage: Usage, output: protocol.Output, detail: str
  ) -> Result:
    """A result without a report: the program has broken its sandbox."""
    self.runs = -1  # never again
    counts = (len(output.streams[0]), len(output.streams[1]))
    account = protocol.Report("exit", 0, detail, 0.0, 0.0, 0, counts)
    wall_s = time.monotonic() - started
    return self._result((outcome, None, None), account, output, usage, wall_s, None)

  def _result(
    self,
    verdict: tuple[Outcome, int | None, int | None],
    report: protocol.Report,
    output: protocol.Output,
    usage: Usage,
    wall_s: float,
    back: ReadBack | None,
  ) -> Result:
    stdout, stderr = map(bytes, output.streams)
    return Result(
      outcome=verdict[0],
      exit_code=verdict[1],
      signal=verdict[2],
      stdout=stdout,
      stderr=stderr,
      stdout_bytes=report.counts[0],
      stderr_bytes=report.counts[1],
      stdout_truncated=report.counts[0] > len(stdout),
      stderr_truncated=report.counts[1] > len(stderr),
      wall_s=wall_s,
      cpu_s=max(report.cpu_s, usage.cpu_s or 0.0),
      peak_memory_bytes=usage.peak_bytes or report.peak_bytes,
      bytes_read=report.io[0] if report.io else None,
      bytes_written=report.io[1] if report.io else None,
      processes=report.processes,
      limits_enforced=self.vessel.enforced,
      files=back.files if back else {},
      left_out=back.left_out if back else {},
      backend=self.backend,
      detail=report.failure,
    )

  async def close(self) -> None:
    await self.vessel.close()


def overrun(usage: Usage, limits: Limits) -> Outcome | None:
  """Why the host has to end a run that is still going on, by the host's own counters."""
  if usage.cpu_s is not None and usage.cpu_s > limits.cpu_s:
    return Outcome.timeout
  return Outcome.pids_limit if usage.refused_forks > FORK_BOMB else None


def judge(
  report: protocol.Report, oom_kills: int, cpu_s: float, limits: Limits, ended: Outcome | None
) -> tuple[Outcome, int | None, int | None]:
  """(outcome, exit code, signal). What the runner did itself wins over what the kernel did.

  `ended` is why the host ended the run, if it did.
  """
  killed = os.WIFSIGNALED(report.status) and os.WTERMSIG(report.status) == signal.SIGKILL
  if report.failure:  # which may be that memory ran out before the program began
    return Outcome.oom if killed and oom_kills else Outcome.infra_error, None, None
  outcome = ENDED_BY_SUPERVISOR.get(report.why) or ended
  if report.why == "cancel" and not outcome:
    outcome = Outcome.cancelled
  if outcome:
    return outcome, None, None
  if os.WIFEXITED(report.status):
    return Outcome.exit, os.WEXITSTATUS(report.status), None
  number = os.WTERMSIG(report.status)
  if killed and oom_kills:
    return Outcome.oom, None, None
  if number in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= limits.cpu_s:
    return Outcome.timeout, None, None
  return Outcome.signal, None, number
