"""One sandbox and the conversation with its supervisor: a request in, a result out."""

import asyncio
import contextlib
import math
import os
import signal
import time

from sandbox_runner import protocol
from sandbox_runner.backends.base import BOOTSTRAP_LIMIT_S, GUEST, Backend, Usage, Vessel
from sandbox_runner.types import Limits, Outcome, Request, Result, SandboxLost

GRACE_S = 2.0  # how long the supervisor may take to end a task and to answer
CPU_POLL_S = 0.2


class Sandbox:
  """A started supervisor. After SandboxLost it is only good to be closed."""

  def __init__(self, name: str, backend: str, vessel: Vessel):
    self.name, self.backend, self.vessel = name, backend, vessel
    self.runs = 0
    self.tenant: str | None = None

  @classmethod
  async def open(cls, name: str, backend: Backend, limits: Limits) -> "Sandbox":
    """Raises SandboxLost if no supervisor answers in time; nothing is left then."""
    vessel = await backend.open(name, limits)
    sandbox = cls(name, backend.name, vessel)
    try:
      async with asyncio.timeout(BOOTSTRAP_LIMIT_S):
        stdin = vessel.process.stdin
        stdin.write(GUEST)
        stdin.writelines(protocol.frame(vessel.setup))
        await stdin.drain()
        await protocol.read_frame(vessel.process.stdout, max_blob=0)
        await vessel.started()
    except (TimeoutError, OSError, SandboxLost) as e:
      words = vessel.last_words()
      await vessel.close()
      raise SandboxLost(f"{backend.name} sandbox did not start: {words or e!r}") from e
    except BaseException:
      await vessel.close()
      raise
    return sandbox

  async def run(self, request: Request, fork_python: bool) -> Result:
    """Raises SandboxLost if the sandbox went away for a reason that is not the program's."""
    limits, vessel = request.limits, self.vessel
    vessel.prepare(limits)
    space, processes = vessel.rlimits(limits)
    started = time.monotonic()
    self.runs += 1
    self.tenant = request.tenant
    cpu_rlimit = math.ceil(limits.cpu_s)
    pieces = protocol.task_frame(request, space, processes, fork_python, cpu_rlimit)
    output = protocol.Output(limits.output_bytes)
    answer = asyncio.create_task(self._exchange(pieces, output))
    out_of_cpu = False
    try:
      while not answer.done():
        left = started + limits.wall_s + GRACE_S - time.monotonic()
        if left <= 0:
          raise TimeoutError
        await asyncio.wait((answer,), timeout=min(left, CPU_POLL_S))
        usage = vessel.usage() if not answer.done() else None
        if usage and usage.cpu_s is not None and usage.cpu_s > limits.cpu_s and not out_of_cpu:
          out_of_cpu = True
          vessel.process.stdin.writelines(protocol.frame({"end": True}))
      report = answer.result()
    except TimeoutError:
      # The supervisor missed its own deadline. The program's time is over, whoever is at fault.
      detail = "the supervisor did not answer in time; the sandbox was ended from outside"
      return self._lost(Outcome.timeout, started, vessel.usage(), output, detail)
    except (SandboxLost, OSError) as e:
      usage = vessel.usage()
      if usage.oom_kills:
        detail = "the kernel ended the supervisor for memory"
        return self._lost(Outcome.oom, started, usage, output, detail)
      raise SandboxLost(f"{e}; {vessel.last_words()}") from e
    finally:
      answer.cancel()
      with contextlib.suppress(asyncio.CancelledError, SandboxLost, OSError):
        await answer
    usage = vessel.usage()
    cpu_s = max(report.cpu_s, usage.cpu_s or 0.0)
    verdict = judge(report, usage.oom_kills, cpu_s, limits, out_of_cpu)
    return self._result(verdict, report, output, usage, started)

  async def _exchange(self, pieces: list[bytes], output: protocol.Output) -> protocol.Report:
    stdin = self.vessel.process.stdin
    for piece in pieces:
      stdin.write(piece)
      await stdin.drain()
    return await protocol.read_report(self.vessel.process.stdout, output)

  def _lost(
    self, outcome: Outcome, started: float, usage: Usage, output: protocol.Output, detail: str
  ) -> Result:
    """A result without a report: the program has broken its sandbox."""
    self.runs = -1  # never again
    counts = (len(output.streams[0]), len(output.streams[1]))
    account = protocol.Report("exit", 0, detail, 0.0, 0.0, 0, counts)
    return self._result((outcome, None, None), account, output, usage, started)

  def _result(
    self,
    verdict: tuple[Outcome, int | None, int | None],
    report: protocol.Report,
    output: protocol.Output,
    usage: Usage,
    started: float,
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
      wall_s=time.monotonic() - started,
      cpu_s=max(report.cpu_s, usage.cpu_s or 0.0),
      peak_memory_bytes=usage.peak_bytes or report.peak_bytes,
      limits_enforced=self.vessel.enforced,
      backend=self.backend,
      detail=report.failure,
    )

  async def close(self) -> None:
    await self.vessel.close()


def judge(
  report: protocol.Report, oom_kills: int, cpu_s: float, limits: Limits, out_of_cpu: bool
) -> tuple[Outcome, int | None, int | None]:
  """(outcome, exit code, signal). What the runner did itself wins over what the kernel did."""
  if report.failure:
    return Outcome.infra_error, None, None
  if report.why == "wall" or out_of_cpu:
    return Outcome.timeout, None, None
  if report.why == "output":
    return Outcome.output_limit, None, None
  if os.WIFEXITED(report.status):
    return Outcome.exit, os.WEXITSTATUS(report.status), None
  number = os.WTERMSIG(report.status)
  if number == signal.SIGKILL and oom_kills:
    return Outcome.oom, None, None
  if number in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= limits.cpu_s:
    return Outcome.timeout, None, None
  return Outcome.signal, None, number
