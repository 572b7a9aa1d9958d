"""An interactive shell in a session: commands on one pseudo-terminal, with a memory.

  shell = session.shell(rows=40, columns=120)
  await shell.run("cd src; export MODE=debug; server &")
  result = await shell.run('pwd; echo "$MODE"')  # b"/work/src\\r\\ndebug\\r\\n"
  command = await shell.start("python3 -i")
  await command.send(b"1 + 1\\n")
  async for event in command:
    match event:
      case ShellOutput(data): ...  # what a person would see, byte for byte
      case ShellPrompt(result): ...  # the command is over, and this is how

Each command is a bash process of its own on the same terminal, and takes over what the one before
it left: directory, variables, functions, aliases and options. Its end is the end of that process,
which the kernel tells the supervisor: there is no prompt and no marker in the text, and nothing
that a command prints, or writes anywhere, can end it or change its status. The memory is a file in
the sandbox: a command that spoils it spoils only what the next one remembers.

How much of a terminal it is depends on the kernel. Old releases of gVisor (docker+runsc) turn no
key into a signal and have no `/dev/tty`: there a program is ended by `Command.end`, not by Ctrl-C.

What a command leaves running in the background goes on between commands, until a step of the
session that is not the shell's, or a command that a limit or `Command.end` has ended.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_runner.protocol import Mode
from sandbox_runner.types import Limits, Request, Result, check_request

if TYPE_CHECKING:
  from sandbox_runner.session import Session

# Job control puts what runs in the background into groups that do not end with this bash.
MEMORY = """\
{ umask -p; shopt -p; declare -f; alias -p; declare -p; printf "cd -- %q\\n" "$PWD"; set +o; } \\
  >"$__state.new" 2>/dev/null && mv -f "$__state.new" "$__state\""""
WRAPPER = f"""
[[ -r $1 ]] && . "$1" >/dev/null 2>&1
unset LINES COLUMNS
__state=$1 __command=$2
trap '__last=$?; {MEMORY}' EXIT
set -m
shopt -s expand_aliases
set --
__status() {{ unset -f __status; return "$1"; }}
__status "${{__last:-0}}" && :
eval "$__command"
"""


@dataclass(frozen=True)
class ShellOutput:
  """Bytes that the command, or the echo of its input, has put on the terminal."""

  data: bytes


@dataclass(frozen=True)
class ShellPrompt:
  """The command is over, and the shell would take the next one."""

  result: Result


def check_size(rows: int, columns: int) -> tuple[int, int]:
  """Raises ValueError for what no terminal can be."""
  if not all(isinstance(n, int) and 0 < n < 1 << 16 for n in (rows, columns)):
    raise ValueError(
      f"a terminal of {rows!r} rows and {columns!r} columns: give 1 to 65535 of each"
    )
  return rows, columns


class Shell:
  """Made by `Session.shell`. One command at a time; a second one waits."""

  def __init__(self, session: "Session", rows: int, columns: int):
    self._session = session
    self._size = check_size(rows, columns)
    self._state = f"/tmp/.shell-{secrets.token_hex(8)}"

  async def run(self, command: str, *, input: bytes = b"", limits: Limits | None = None) -> Result:
    """Runs a command to its end. `Result.stdout` is what was on the terminal, with its echo.

    If the caller is cancelled, the command is ended like by `Command.end`, and the shell goes on.
    """
    started = await self.start(command, limits=limits)
    try:
      if input:
        await started.send(input)
      return await started.result()
    except asyncio.CancelledError:
      started.give_up()
      raise

  async def start(self, command: str, *, limits: Limits | None = None) -> "Command":
    """Starts a command, to be talked to while it runs. Raises SessionError like any step."""
    request = Request(
      ("bash", "--norc", "-c", WRAPPER, "bash", self._state, command),
      env={"TERM": "xterm-256color"},
      limits=limits or self._session.limits,
      tenant=self._session.tenant,
    )
    check_request(request)
    started = Command(self._session)
    await started.begin(request, self._size)
    return started

  async def resize(self, rows: int, columns: int) -> None:
    """For the next command; a running one is told by `Command.resize`."""
    self._size = check_size(rows, columns)


class Command:
  """A command that runs. Ends by itself, or by a limit; `result` has to be awaited."""

  def __init__(self, session: "Session"):
    self._session = session
    self._events: asyncio.Queue[ShellOutput | None] = asyncio.Queue()
    self._run: asyncio.Task[Result]

  async def begin(self, request: Request, size: tuple[int, int]) -> None:
    listens = asyncio.Event()

    def add(data: bytes) -> None:
      self._events.put_nowait(ShellOutput(data))

    mode = Mode(keep=True, terminal=size, on_output=add, on_start=listens.set)
    self._run = asyncio.ensure_future(self._session.run(request, mode))
    self._run.add_done_callback(lambda _: self._events.put_nowait(None))
    waiting = asyncio.ensure_future(listens.wait())
    try:
      await asyncio.wait((self._run, waiting), return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
      self._run.cancel()
      raise
    finally:
      waiting.cancel()
    if self._run.done():
      self._run.result()  # it did not even start, and this raises why

  async def send(self, data: bytes) -> None:
    """Types. `b"\\x03"` is Ctrl-C and `b"\\x04"` Ctrl-D, as far as the terminal is in that mode.

    What comes after the command's end is dropped.
    """
    self._session.sandbox.tell({"input": True}, data)

  async def resize(self, rows: int, columns: int) -> None:
    self._session.sandbox.tell({"resize": check_size(rows, columns)})

  async def end(self) -> Result:
    """Ends the command and all that the shell has in the background. The outcome is `cancelled`."""
    self._session.sandbox.tell({"end": True})
    return await self.result()

  def give_up(self) -> None:
    """Ends it without waiting for that; the next step of the session does."""
    self._run.cancel()

  async def result(self) -> Result:
    return await asyncio.shield(self._run)

  async def __aiter__(self) -> AsyncIterator[ShellOutput | ShellPrompt]:
    """What happens, as it happens; the last event is a ShellPrompt."""
    while event := await self._events.get():
      yield event
    yield ShellPrompt(await self.result())
