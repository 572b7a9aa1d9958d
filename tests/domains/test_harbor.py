"""Task folders in Harbor's format: what is read, what is placed, what is refused."""

import pytest

from ptjax.domains.harbor import placed, read_folder

FILES = {
  "task.toml": '[metadata]\nx = 1\n[agent]\ntimeout_sec = 120\n[environment]\nmemory_mb = 512\n',
  "instruction.md": "Read /app/in.txt, write /app. See `/app/a`, http://x/app and /apple.\n",
  "environment/Dockerfile": "# why\nFROM sandbox_runner/terminal\nWORKDIR /app\n\n"
  "COPY in.txt data/ ./\nRUN sort /app/in.txt \\\n  > out && \\\n  # in between\n  rm in.txt\n"
  "WORKDIR src\nRUN pwd\n",
  "environment/in.txt": "b\na\n",
  "environment/data/x.bin": b"\xff/app/x",
  "environment/data/sub/y.txt": "see /app/x\n",
  "tests/test.sh": "diff /app/out /tests/out && echo 1 >/logs/verifier/reward.txt\n",
  "tests/run.sh": "cat </app/out >/logs/run/out\n",
  "solution/solve.sh": 'cp "/solution/a" /app/\n',
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
  def write_folder(**changes):
    changes = {key.replace("__", "/").replace("_dot_", "."): v for key, v in changes.items()}
    for name, text in (FILES | changes).items():
      if text is not None:
        path = tmp_path / "sorting" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / "sorting"

  return write_folder


def test_a_folder(write):
  folder = read_folder(write())
  assert (folder.name, folder.image, folder.workdir) == ("sorting", "terminal", "app/src")
  assert folder.instruction == (
    "Read /work/app/in.txt, write /work/app. See `/work/app/a`, http://x/app and /apple."
  )
  steps = [(step.line, dict(step.files), step.command, step.cwd) for step in folder.steps]
  copied = {
    "app/in.txt": b"b\na\n",
    "app/x.bin": b"\xff/app/x",
    "app/sub/y.txt": b"see /work/app/x\n",
  }
  assert steps == [
    (3, {}, "", "app"),
    (5, copied, "", "app"),
    (6, {}, "sort /work/app/in.txt    > out &&    rm in.txt", "app"),
    (10, {}, "", "app/src"),
    (11, {}, "pwd", "app/src"),
  ]
  assert folder.tests == {
    "test.sh": b"diff /work/app/out /work/tests/out && echo 1 >/work/logs/verifier/reward.txt\n"
  }
  assert folder.run == "cat </work/app/out >/work/logs/run/out\n"
  assert folder.solution == 'cp "/work/solution/a" /work/app/\n'
  assert (folder.agent_s, folder.verifier_s, folder.memory_mb, folder.disk_mb) == (
    120,
    60,
    512,
    None,
  )


@pytest.mark.parametrize(
  ("text", "want"),
  [
    ("cd /app", "cd /work/app"),
    ("In /app.", "In /work/app."),
    ("a=/app:/app/b", "a=/work/app:/work/app/b"),
    ("$X/app ~/app ./app x/app", "$X/app ~/app ./app x/app"),
    ("/app.py /app-x /tests", "/app.py /app-x /work/tests"),
    ("/work/app", "/work/app"),
  ],
)
def test_places(text, want):
  assert placed(text, ("app", "tests")) == want


DOCKERFILES = {
  "FROM ubuntu:24.04\nWORKDIR /app\n": "line 1: FROM ubuntu:24.04: write one FROM, of one of",
  "FROM sandbox_runner/code\nFROM sandbox_runner/code\nWORKDIR /a": "line 2: FROM sandbox",
  "FROM sandbox_runner/code\nENV A=1\n": "line 2: ENV is not supported; use FROM, WORKDIR",
  "FROM sandbox_runner/code\nWORKDIR /usr/src\n": "line 2: /usr/src: the root is read-only",
  "FROM sandbox_runner/code\nWORKDIR /\n": "line 2: /: the root is read-only",
  "FROM sandbox_runner/code\nWORKDIR /app/../etc\n": "line 2: /app/../etc: the root is",
  "FROM sandbox_runner/code\nRUN true\nWORKDIR /app\n": "line 2: a WORKDIR must come first",
  "FROM sandbox_runner/code\n": "it needs FROM and WORKDIR",
  "FROM sandbox_runner/code\nWORKDIR /app\nCOPY none .\n": "line 3: COPY none: there is no such",
  "FROM sandbox_runner/code\nWORKDIR /app\nCOPY ../task.toml .\n": "lies outside of environment",
  "FROM sandbox_runner/code\nWORKDIR /app\nCOPY --chown=1 in.txt .\n": "without options",
  "FROM sandbox_runner/code\nWORKDIR /app\nCOPY in.txt /etc/x\n": "/etc/x: the root is read-only",
  "FROM sandbox_runner/code\nWORKDIR /app\nCOPY in.txt /tests/x\n": "/tests/x: the root is",
  'FROM sandbox_runner/code\nWORKDIR /app\nRUN ["a"]\n': "only a command for sh",
}


@pytest.mark.parametrize("text", DOCKERFILES)
def test_what_no_sandbox_gives_is_refused(write, text):
  with pytest.raises(ValueError) as caught:
    read_folder(write(environment__Dockerfile=text))
  assert DOCKERFILES[text] in str(caught.value)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("x = ", "is no TOML"),
    ("[environment]\nallow_internet = true\n", "sandboxes have no network"),
    ("[environment]\ngpus = 1\n", "gpus 1: sandboxes have none"),
    ("[environment]\nmemory = '2G'\n", "environment.memory is not supported; known: allow_"),
    ("[steps]\n", r"\[steps\] is not supported"),
  ],
)
def test_settings_that_nothing_would_heed_are_refused(write, text, message):
  with pytest.raises(ValueError, match=message):
    read_folder(write(task_dot_toml=text))


def test_a_folder_without_its_tests(write):
  with pytest.raises(ValueError, match=r"has no tests/test\.sh"):
    read_folder(write(tests__test_dot_sh=None))
