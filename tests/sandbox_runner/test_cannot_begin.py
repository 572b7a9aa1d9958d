"""A program that cannot begin has ended, as a shell would say: no policy avoids its score so."""

import pytest
from sandbox_driver import Driver

from sandbox_runner import Limits, Outcome, Request, Result


def run(driver: Driver, *argv: str, **fields) -> Result:
  return driver.run(driver.pool.run(Request(argv, **fields)))


@pytest.mark.parametrize(
  ("argv", "code", "said"),
  [
    (("no-such-program",), 127, b"no-such-program: No such file or directory\n"),
    (("./none",), 127, b"./none: No such file or directory\n"),
    (("./f/none",), 127, b"./f/none: Not a directory\n"),
    (("./f",), 126, b"./f: Permission denied\n"),
    (("/work",), 126, b"/work: Permission denied\n"),
    (("./lacks",), 126, b"./lacks: No such file or directory\n"),
    (("./text",), 126, b"./text: Exec format error\n"),
    (("./" + "x" * 300,), 126, b"./" + b"x" * 300 + b": File name too long\n"),
    (("\udcff",), 127, b"\xff: No such file or directory\n"),
  ],
)
def test_what_a_shell_would_say(driver: Driver, argv: tuple[str, ...], code: int, said: bytes):
  async def go() -> Result:
    async with driver.pool.lease() as session:
      make = "printf '#!/none\\n' >lacks; printf 'text\\n' >text; chmod +x lacks text; touch f"
      await session.exec(("bash", "-c", make))
      return await session.exec(argv)

  result = driver.run(go())
  assert (result.outcome, result.exit_code, result.stderr) == (Outcome.exit, code, said), result
  assert (result.stdout, result.processes, result.detail) == (b"", 1, "")


def test_a_file_in_place_of_its_directory(driver: Driver):
  files = {"place": b""}
  for cwd in ("place", "place/below"):
    result = run(driver, "true", files=files, cwd=cwd)
    assert (result.outcome, result.exit_code) == (Outcome.exit, 126), result
    assert result.stderr.startswith(cwd.encode() + b": ")
    assert result.stderr.count(b"\n") == 1


def test_its_output_is_capped_and_its_files_come_back(driver: Driver):
  result = run(driver, "none", files={"f": b"1"}, copy_out=("f",))
  assert (result.exit_code, result.files) == (127, {"f": b"1"})


def test_a_script_that_python_cannot_read(driver: Driver):
  """Python itself says so."""

  async def go() -> Result:
    async with driver.pool.lease() as session:
      await session.exec(("bash", "-c", "echo 'print(1)' >f.py; chmod 0 f.py"))
      return await session.exec(("python3", "f.py"))

  result = driver.run(go())
  assert (result.outcome, result.exit_code) == (Outcome.exit, 2), result
  assert b"can't open file" in result.stderr


@pytest.mark.parametrize(
  ("before", "said"),
  [
    ("mkdir -p d/f", b"d/f: Is a directory\n"),
    ("mkdir d; chmod 0 d", b"d/f: Permission denied\n"),
    ("touch d", b"/work/d: File exists\n"),
    ("head -c 64M /dev/zero >full", b"files: No space left on device\n"),
  ],
)
def test_an_earlier_step_is_in_the_way_of_its_files(driver: Driver, before: str, said: bytes):
  files = {"d/f": bytes(1 << 18)}

  async def go() -> tuple[Result, Result]:
    async with driver.pool.lease(limits=Limits(disk_mb=16)) as session:
      await session.exec(("bash", "-c", before))
      refused = await session.exec(("true",), files=files)
      await session.exec(("bash", "-c", "chmod 755 d; rm -rf d full"))
      return refused, await session.exec(("wc", "-c", "d/f"), files=files)

  refused, after = driver.run(go())
  assert (refused.outcome, refused.exit_code, refused.stderr) == (Outcome.exit, 126, said), refused
  assert after.stdout == b"262144 d/f\n", after
