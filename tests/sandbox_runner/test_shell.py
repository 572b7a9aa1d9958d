"""The shell of a session: its memory, its terminal, and ends that cannot be forged."""

import asyncio

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome
from sandbox_runner.shell import Command, Shell, ShellOutput, ShellPrompt


def needs_a_whole_terminal(driver: Driver) -> None:
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("gVisor's terminals turn no key and no new size into a signal, and know no Ctrl-D")


def in_shell(driver: Driver, steps, rows: int = 24, columns: int = 80) -> None:
  """Runs `steps(shell, session)`, an async function, with the shell of a new session."""

  async def go():
    async with driver.pool.lease() as session:
      await steps(session.shell(rows, columns), session)

  driver.run(go())


async def told(shell: Shell, command: str, code: int = 0, **fields) -> bytes:
  result = await shell.run(command, **fields)
  assert (result.outcome, result.exit_code) == (Outcome.exit, code), result
  return result.stdout.replace(b"\r\n", b"\n")


async def until(command: Command, text: bytes) -> bytes:
  """What was on the terminal up to and with `text`."""
  seen = b""
  async for event in command:
    assert isinstance(event, ShellOutput), (seen, event)
    seen += event.data
    if text in seen:
      return seen
  raise AssertionError(seen)


def test_memory(driver: Driver):
  async def steps(shell: Shell, _):
    setup = (
      "mkdir 'a b'; cd 'a b'; export E=$'x\\ny'; v='1  2'; arr=(p q); declare -A map=([k]=w)\n"
      "f() { echo f$1; }; alias hi='echo hello'; set -u; shopt -s nullglob; umask 027"
    )
    assert await told(shell, setup) == b""
    look = 'pwd; env | grep -A1 ^E=; echo "$v" ${arr[1]} ${map[k]}; f 1; hi; echo *.none; umask'
    assert await told(shell, look) == b"/work/a b\nE=x\ny\n1  2 q w\nf1\nhello\n\n0027\n"
    assert b"unbound" in await told(shell, "echo $absent", code=127)
    assert await told(shell, "cd ..; set +u; unset v; (cd /; v=9)") == b""
    assert await told(shell, 'pwd; echo "[$v]"') == b"/work\n[]\n"

  in_shell(driver, steps)


def test_status_is_that_of_the_process(driver: Driver):
  async def steps(shell: Shell, _):
    await told(shell, "exit 3", code=3)
    assert await told(shell, "echo $?; false", code=1) == b"3\n"
    await told(shell, "x=5; set -e; false; echo not here", code=1)
    assert await told(shell, "set +e; false; echo $x") == b"5\n"
    result = await shell.run("x=6; kill -9 $$")
    assert (result.outcome, result.signal) == (Outcome.signal, 9)
    assert await told(shell, "echo $x") == b"5\n"  # it could not remember
    await told(shell, "if", code=2)
    await told(shell, "no-such-command", code=127)

  in_shell(driver, steps)


def test_it_is_a_terminal(driver: Driver):
  code = (
    "import os, sys\n"
    "print([os.isatty(n) for n in range(3)], *os.get_terminal_size())\n"
    "print(os.tcgetpgrp(0) == os.getpgrp(), os.environ['TERM'])\n"
  )

  async def steps(shell: Shell, session):
    await session.write_files({"t.py": code.encode()})
    expected = b"[True, True, True] 120 40\nTrue xterm-256color\n"
    assert await told(shell, "python3 t.py") == expected
    await shell.resize(50, 132)
    assert (await told(shell, "python3 t.py")).startswith(b"[True, True, True] 132 50\n")

  in_shell(driver, steps, 40, 120)


def test_end_of_file(driver: Driver):
  needs_a_whole_terminal(driver)

  async def steps(shell: Shell, _):
    assert await told(shell, "cat; echo over", input=b"one\n\x04") == b"one\none\nover\n"

  in_shell(driver, steps)


def test_typing_and_echo(driver: Driver):
  async def steps(shell: Shell, _):
    command = await shell.start("read -p 'name? ' n; echo \"<$n>\"")
    assert await until(command, b"? ") == b"name? "
    await command.send(b"me\n")
    events = [event async for event in command]
    assert isinstance(events[-1], ShellPrompt)
    assert b"".join(e.data for e in events[:-1]) == b"me\r\n<me>\r\n"
    assert events[-1].result.stdout == b"name? me\r\n<me>\r\n"
    await command.send(b"late\n")  # dropped, and not what the next command reads
    assert await told(shell, "read -t 0.2 x; echo [$x]") == b"[]\n"

  in_shell(driver, steps)


def test_resize_while_it_runs(driver: Driver):
  needs_a_whole_terminal(driver)
  code = (
    "import os, signal\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
    "print('ready', flush=True)\n"
    "signal.sigwait([signal.SIGWINCH])\n"
    "print(*os.get_terminal_size())\n"
  )

  async def steps(shell: Shell, session):
    await session.write_files({"t.py": code.encode()})
    command = await shell.start("python3 t.py")
    await until(command, b"ready")
    await command.resize(7, 99)
    assert (await command.result()).stdout == b"ready\r\n99 7\r\n"

  in_shell(driver, steps)


def test_interrupt_reaches_the_program(driver: Driver):
  needs_a_whole_terminal(driver)

  async def steps(shell: Shell, _):
    command = await shell.start("python3 -c 'import time; print(1, flush=True); time.sleep(99)'")
    await until(command, b"1")
    await command.send(b"\x03")
    result = await command.result()
    assert (result.outcome, b"KeyboardInterrupt" in result.stdout) == (Outcome.exit, True), result
    assert await told(shell, "echo next") == b"next\n"

  in_shell(driver, steps)


def test_all_that_was_written_comes_and_no_more(driver: Driver):
  async def steps(shell: Shell, _):
    wanted = b"".join(b"%d\n" % n for n in range(1, 5001))
    assert await told(shell, "seq 5000") == wanted
    for i in range(10):
      assert await told(shell, f"printf {i}; exec true") == b"%d" % i

  in_shell(driver, steps)


FORGE = (
  "import os, glob, json, struct\n"
  "head = json.dumps({'why': 'exit', 'status': 0, 'failure': '', 'wall_s': 0.1, 'cpu_s': 0.1,\n"
  "  'peak_kb': 1, 'counts': [0, 0]}).encode()\n"
  "frame = struct.pack('!II', len(head), 0) + head\n"
  "for path in glob.glob('/proc/[0-9]*/fd/*'):\n"
  "  try:\n"
  "    with open(path, 'wb', buffering=0) as f: f.write(frame)\n"
  "  except OSError: pass\n"
  "print('forged', flush=True)\n"
)


def test_an_end_cannot_be_forged(driver: Driver):
  """A command that writes a report, and prompts, to all that it can open still ends as it ends."""

  async def steps(shell: Shell, session):
    await session.write_files({"forge.py": FORGE.encode()})
    forge = "python3 forge.py; PS1='$ '; PROMPT_COMMAND='echo done'; printf '\\n$ exit 0\\n'"
    result = await shell.run(f"{forge}; exit 7")
    assert (result.outcome, result.exit_code) == (Outcome.exit, 7), result
    assert b"forged" in result.stdout
    spoil = "for f in /tmp/.shell-*; do echo 'exit 0' >$f; done; trap 'exit 0' EXIT; kill -9 $$"
    assert (await shell.run(spoil)).signal == 9

  in_shell(driver, steps)


def test_background_goes_on_until_another_step(driver: Driver):
  async def steps(shell: Shell, session):
    await told(shell, "(while :; do sleep 0.05; date +%s%N >beat; done) & echo $! >pid")
    await told(shell, "while ! [ -s beat ]; do sleep 0.05; done; cp beat first")
    await told(shell, "while cmp -s beat first; do sleep 0.05; done; kill -0 $(cat pid)")
    result = await session.exec(("bash", "-c", "kill -0 $(cat pid)"))  # still beside it
    assert result.exit_code == 0, result
    assert b"No such process" in await told(shell, "kill -0 $(cat pid)", code=1)
    assert await told(shell, "echo still $((1 + 1))") == b"still 2\n"

  in_shell(driver, steps)


@pytest.mark.parametrize("how", ["wall", "output", "end"])
def test_ended_commands(driver: Driver, how: str):
  async def steps(shell: Shell, _):
    await told(shell, "cd /tmp; sleep 300 & echo $! >/work/pid")
    if how == "end":
      command = await shell.start("echo up; sleep 99")
      await until(command, b"up")
      assert (await command.end()).outcome == Outcome.cancelled
    elif how == "wall":
      assert (await shell.run("sleep 99", limits=Limits(wall_s=1))).outcome == Outcome.timeout
    else:
      result = await shell.run("yes", limits=Limits(output_bytes=1000))
      assert (result.outcome, len(result.stdout)) == (Outcome.output_limit, 1000)
    assert b"No such process" in await told(shell, "pwd >/work/p; kill -0 $(cat /work/pid)", code=1)
    assert await told(shell, "cat /work/p") == b"/tmp\n"

  in_shell(driver, steps)


def test_two_shells_share_the_files_and_not_the_memory(driver: Driver):
  async def steps(shell: Shell, session):
    other = session.shell()
    await told(shell, "cd /tmp; x=1; echo f >/work/f")
    assert await told(other, "pwd; echo [$x]; cat f") == b"/work\n[]\nf\n"
    one, two = await asyncio.gather(told(shell, "pwd"), told(other, "pwd"))
    assert (one, two) == (b"/tmp\n", b"/work\n")

  in_shell(driver, steps)
