"""What whoever builds a tool environment on sessions would trip over."""

import asyncio
import math
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, RequestError
from sandbox_runner.session import Session, SessionError, SessionLost

PATIENT = Limits(wall_s=60)
# The program itself says that it is up: bash, before it has given the terminal away, keeps a Ctrl-C
# until the program ends.
UP = "sh -c 'echo up; exec sleep 300'"


def in_session(driver: Driver, steps, **lease) -> None:
  """Runs `steps(session)`, an async function, in a session."""

  async def go():
    async with driver.pool.lease(**lease) as session:
      await steps(session)

  driver.run(go())


async def bash(session: Session, script: str, **fields) -> bytes:
  result = await session.exec(("bash", "-c", script), **fields)
  assert (result.outcome, result.exit_code) == (Outcome.exit, 0), result
  return result.stdout


@pytest.mark.parametrize("how", ["cancel", "timeout", "at once"])
def test_a_session_outlives_a_cancelled_step(driver: Driver, how: str):
  async def steps(session: Session):
    await bash(session, "echo 1 >f")
    script = "echo 2 >g; sleep 300 & setsid sleep 300 & sleep 300"
    step = asyncio.ensure_future(session.exec(("bash", "-c", script), limits=PATIENT))
    if how == "timeout":
      with pytest.raises(TimeoutError):
        await asyncio.wait_for(step, 0.5)
    else:
      await asyncio.sleep(0 if how == "at once" else 0.5)
      step.cancel()
      with pytest.raises(asyncio.CancelledError):
        await step
    told = await bash(session, "cat f g 2>&-; p=(/proc/[0-9]*); echo ${#p[@]}; true")
    assert told in ((b"1\n2\n2\n", b"1\n2\n") if how == "at once" else (b"1\n2\n2\n",))

  in_session(driver, steps)


def test_a_step_that_is_cancelled_while_it_waits_for_its_turn(driver: Driver):
  async def steps(session: Session):
    first = asyncio.ensure_future(session.exec(("sleep", "1")))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(session.exec(("touch", "f")))
    await asyncio.sleep(0.1)
    second.cancel()
    assert (await first).exit_code == 0
    assert await session.read_files("f") == {}

  in_session(driver, steps)


def test_a_shell_outlives_a_cancelled_command(driver: Driver):
  async def steps(session: Session):
    shell = session.shell()
    assert (await shell.run("cd /tmp; x=1")).exit_code == 0
    with pytest.raises(TimeoutError):
      await asyncio.wait_for(shell.run("sleep 300", limits=PATIENT), 0.5)
    assert (await shell.run("pwd; echo $x")).stdout == b"/tmp\r\n1\r\n"

  in_session(driver, steps)


def test_ctrl_c_keeps_the_memory(driver: Driver):
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("gVisor's terminals turn no key into a signal")

  async def steps(session: Session):
    shell = session.shell()
    command = await shell.start(f"cd /tmp; x=1; {UP}; echo not here", limits=PATIENT)
    async for _ in command:
      break
    await command.send(b"\x03")
    result = await command.result()
    assert result.stdout == b"up\r\n^C", result  # and not what comes after
    assert (await shell.run("pwd; echo $x")).stdout == b"/tmp\r\n1\r\n"

  in_session(driver, steps)


@pytest.mark.parametrize(
  ("fields", "said"),
  [
    ({"argv": "ls -l"}, "argv='ls -l' is one text"),
    ({"argv": ("ls", Path("x"))}, "must be text, not PosixPath"),
    ({"stdin": "text"}, "stdin must be bytes, not str"),
    ({"env": {"N": 1}}, "1 must be text, not int"),
    ({"copy_out": "out/*"}, r"copy_out='out/\*' is one text"),
    ({"files": {"\ud800": b""}}, "holds a surrogate"),
    ({"files": {"f": "text"}}, "must be bytes, not str"),
    ({"cwd": "/etc"}, "plain path below the work directory"),
  ],
)
def test_slips_are_refused_and_cost_nothing(driver: Driver, fields: dict, said: str):
  async def steps(session: Session):
    with pytest.raises(RequestError, match=said):
      await session.exec(**{"argv": ("true",), **fields})
    assert await bash(session, "echo on") == b"on\n"

  in_session(driver, steps)


def test_sizes_of_a_terminal(driver: Driver):
  async def steps(session: Session):
    shell = session.shell()
    command = await shell.start("sleep 0.5; echo on")
    for rows, columns in ((0, 80), (24, -1), (24, 1 << 16), (24, 8.5)):
      for resize in (shell.resize, command.resize):
        with pytest.raises(ValueError, match="a terminal of"):
          await resize(rows, columns)
    assert (await command.result()).stdout == b"on\r\n"

  in_session(driver, steps)


@pytest.mark.parametrize("idle_s", [0, -1, math.nan])
def test_no_idle_time_is_refused(driver: Driver, idle_s: float):
  with pytest.raises(ValueError, match="idle_s="):
    in_session(driver, None, idle_s=idle_s)


ODD_NAMES = (
  *(b"a b", b"new\nline", b"-rf", b"\xff\xfe", "é\u202e😀".encode(), b"*", b"[a]", b"'\"$(x)`"),
  b"x" * 255,
)


def test_odd_names_and_content_go_both_ways(driver: Driver):
  async def steps(session: Session):
    files = {name.decode("utf-8", "surrogateescape"): name + b"\0\xff" for name in ODD_NAMES}
    await session.write_files(files)
    listing = "import os; print(sorted(os.listdir(b'.')) == sorted(eval(input())), end='')"
    result = await session.exec(("python3", "-c", listing), stdin=repr(list(ODD_NAMES)).encode())
    assert result.stdout == b"True", result
    assert await session.read_files("**") == files
    snapshot = await session.snapshot()
    await bash(session, "rm -rf -- * ./*")
    await session.restore(snapshot)
    assert await session.read_files("**") == files

  in_session(driver, steps)


def test_many_small_files(driver: Driver):
  make = (
    "import os\n"
    "for i in range(3000):\n"
    "  os.makedirs(f'd{i % 50}', exist_ok=True)\n"
    "  open(f'd{i % 50}/a-rather-long-name-{i}', 'w').write(str(i))\n"
  )

  async def steps(session: Session):
    assert (await session.exec(("python3", "-c", make))).exit_code == 0
    snapshot = await session.snapshot()
    assert len(snapshot.entries) == 3050
    await bash(session, "rm -rf d*")
    await session.restore(snapshot)
    files = await session.read_files("**")
    assert sorted(map(int, files.values())) == list(range(3000))

  in_session(driver, steps, limits=Limits(copy_out_s=20, disk_mb=100))


def test_a_file_is_read_while_it_is_written(driver: Driver):
  async def steps(session: Session):
    shell = session.shell()
    await shell.run("(while :; do echo 0123456789 >>log; done) & while ! [ -s log ]; do :; done")
    for _ in range(3):
      content = (await session.read_files("log"))["log"]
      assert content.startswith(b"0123456789\n")
    cut = "(while :; do for n in 1 99999 5 0; do head -c $n /dev/zero >log; done; done) &"
    await shell.run(cut)
    for _ in range(3):
      assert set(await session.read_files("log")) <= {"log"}

  in_session(driver, steps)


def test_a_directory_that_a_program_has_closed(driver: Driver):
  """A program can make its own work directory useless, and nobody else's."""

  async def steps(session: Session):
    await session.write_files({"d/f": b"1"})
    await bash(session, "chmod 0 d; chmod 0 . || true")
    assert await session.read_files("d/f") == {"d/f": b"1"}
    snapshot = await session.snapshot()
    await session.restore(snapshot)
    with pytest.raises(SessionError, match="not all written"):
      await session.write_files({"d/g": b"2"})
    await bash(session, "chmod 700 . d || chmod 700 d; cat d/f")

  in_session(driver, steps)


def test_large_input_that_nobody_reads(driver: Driver):
  async def steps(session: Session):
    result = await session.exec(("true",), stdin=bytes(20 << 20))
    assert (result.outcome, result.exit_code) == (Outcome.exit, 0)
    told = await session.exec(("wc", "-c"), stdin=bytes(20 << 20))
    assert told.stdout.strip() == b"20971520"

  in_session(driver, steps)


def test_a_shell_that_is_flooded_or_ended_lives_on(driver: Driver):
  async def steps(session: Session):
    shell = session.shell()
    await shell.run("x=1")
    for command in ("yes", "sleep 99", "kill -9 $$", "exit 3", "exec false", "kill -STOP $$"):
      await shell.run(command, limits=Limits(wall_s=1, output_bytes=1000))
      assert (await shell.run("echo $x")).stdout == b"1\r\n", command

  in_session(driver, steps)


def test_a_session_whose_program_kills_all(driver: Driver):
  """It may end itself; the session goes on, or says that it is lost."""

  async def steps(session: Session):
    await bash(session, "echo 1 >f")
    result = await session.exec(("bash", "-c", "kill -9 -1; sleep 5"))
    assert result.outcome in (Outcome.signal, Outcome.exit)
    assert await bash(session, "cat f") == b"1\n"
    await session.sandbox.vessel.close()
    with pytest.raises(SessionLost):
      await session.read_files("f")

  in_session(driver, steps)
