"""Task folders in the format of Harbor (harborframework.com), read for a sandbox of ours.

  task.toml               limits; a table `metadata` of the author's own
  instruction.md          what the policy is asked
  environment/Dockerfile  FROM one of our images, WORKDIR, COPY, RUN; files to copy beside it
  tests/test.sh           writes a number to /logs/verifier/reward.txt; what it needs beside it
  tests/run.sh            optional, and ours: runs what the policy wrote, see `terminal`
  solution/solve.sh       a solution

The root of a sandbox is read-only and its work directory is /work, so Harbor's places (/app or
whatever WORKDIR says, /tests, /logs, /solution) are below that. Texts that name them are rewritten
when they are read: `/app/data.csv` becomes `/work/app/data.csv`. What a folder asks for and a
sandbox cannot give is refused, with the line.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sandbox_runner.images.description import image_names

WORK = "/work"
PLACES = ("tests", "logs", "solution")
"""What a folder may name beside its WORKDIR."""

_SYSTEM = ("bin", "boot", "box", "dev", "etc", "lib", "lib64", "media", "mnt", "opt", "proc", "run")
_SYSTEM += ("sbin", "srv", "sys", "tmp", "usr", "var", "work")
_FROM = re.compile(r"(?:sandbox_runner/)?(\w+)(?::\S+)?")
_KNOWN: Mapping[str, frozenset[str]] = {
  "agent": frozenset({"timeout_sec"}),
  "verifier": frozenset({"timeout_sec"}),
  # A sandbox has one processor's time at most, and nothing to build.
  "environment": frozenset(
    {"cpus", "build_timeout_sec", "memory_mb", "storage_mb", "allow_internet", "gpus"}
  ),
}
_FREE = frozenset({"version", "schema_version", "task", "metadata", "source"})


@dataclasses.dataclass(frozen=True)
class Step:
  """One step of making the environment.

  Attributes:
    files: to write first, by their path below the work directory.
    command: for `sh -c`, then; "" for none.
    cwd: where, below the work directory.
    line: of the Dockerfile.
  """

  files: Mapping[str, bytes]
  command: str
  cwd: str
  line: int


@dataclasses.dataclass(frozen=True)
class Folder:
  """A task.

  Attributes:
    name: of the folder.
    instruction: for the policy.
    image: of the sandbox.
    workdir: where the policy begins, below the work directory.
    steps: how the environment is made.
    tests: files by path below tests/, without run.sh.
    run: text of tests/run.sh, or "".
    solution: text of solution/solve.sh, or "".
    agent_s, verifier_s: seconds for the episode, and for its tests.
    memory_mb, disk_mb: of the sandbox; None leaves those of the image.
  """

  name: str
  instruction: str
  image: str
  workdir: str
  steps: tuple[Step, ...]
  tests: Mapping[str, bytes]
  run: str
  solution: str
  agent_s: float
  verifier_s: float
  memory_mb: int | None
  disk_mb: int | None


def read_folder(path: Path) -> Folder:
  """Reads a task folder.

  Raises:
    ValueError: something in it that a sandbox cannot give, or that is missing; the message names
      the file and the line.
  """
  for name in ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"):
    if not (path / name).is_file():
      raise ValueError(f"task folder {path} has no {name}")
  config = _config(path / "task.toml")
  image, workdirs, steps = _Dockerfile(path / "environment").read()
  places = (*{workdir.split("/")[0] for workdir in workdirs}, *PLACES)
  steps = tuple(
    dataclasses.replace(
      step,
      files={name: _rewritten(data, places) for name, data in step.files.items()},
      command=placed(step.command, places),
    )
    for step in steps
  )
  tests = {k: _rewritten(v, places) for k, v in files_below(path / "tests").items()}
  solution = path / "solution" / "solve.sh"
  limits = config.get("environment", {})
  return Folder(
    name=path.name,
    instruction=placed((path / "instruction.md").read_text(), places).strip(),
    image=image,
    workdir=workdirs[-1],
    steps=steps,
    tests={name: data for name, data in tests.items() if name != "run.sh"},
    run=tests.get("run.sh", b"").decode(),
    solution=placed(solution.read_text(), places) if solution.is_file() else "",
    agent_s=float(config.get("agent", {}).get("timeout_sec", 600.0)),
    verifier_s=float(config.get("verifier", {}).get("timeout_sec", 60.0)),
    memory_mb=limits.get("memory_mb"),
    disk_mb=limits.get("storage_mb"),
  )


def placed(text: str, places: tuple[str, ...]) -> str:
  """The text with the absolute paths of these places below the work directory."""
  names = "|".join(map(re.escape, places))
  # After what may stand before a path, and before what ends its first part: a full stop may.
  path = rf"(?<![^\s\"'=:(><,`\[|;&@])/({names})(?=/|[^\w.-]|\.(?:\s|$)|$)"
  return re.sub(path, rf"{WORK}/\1", text)


def _rewritten(data: bytes, places: tuple[str, ...]) -> bytes:
  try:
    return placed(data.decode(), places).encode()
  except UnicodeDecodeError:
    return data  # no text


def files_below(path: Path) -> dict[str, bytes]:
  """Content by path below a directory, in order of the paths."""
  found = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
  return {p.relative_to(path).as_posix(): p.read_bytes() for p in found}


def _config(path: Path) -> Mapping[str, Any]:
  try:
    config = tomllib.loads(path.read_text())
  except tomllib.TOMLDecodeError as error:
    raise ValueError(f"{path} is no TOML: {error}") from error
  for table, content in config.items():
    if table in _FREE:
      continue
    if table not in _KNOWN:
      raise ValueError(f"{path}: [{table}] is not supported; leave it out")
    for key in content:
      if key not in _KNOWN[table]:
        known = ", ".join(sorted(_KNOWN[table]))
        raise ValueError(f"{path}: {table}.{key} is not supported; known: {known}")
  environment = config.get("environment", {})
  if environment.get("allow_internet"):
    raise ValueError(f"{path}: environment.allow_internet: sandboxes have no network; set false")
  if environment.get("gpus"):
    raise ValueError(f"{path}: environment.gpus {environment['gpus']}: sandboxes have none")
  return config


class _Dockerfile:
  """Reads environment/Dockerfile; files that it copies lie beside it."""

  def __init__(self, directory: Path):
    self._directory, self._path = directory, directory / "Dockerfile"
    self._image = ""
    self._workdirs: list[str] = []
    self._steps: list[Step] = []
    self._line = 0

  def read(self) -> tuple[str, list[str], tuple[Step, ...]]:
    """(image, directories that WORKDIR named, steps)."""
    for line, instruction, rest in _instructions(self._path.read_text()):
      self._line = line
      match instruction:
        case "FROM":
          self._from(rest)
        case "WORKDIR":
          self._workdirs.append(self._below(rest))
          self._step({}, "")
        case "COPY":
          self._step(self._copied(rest.split()), "")
        case "RUN":
          if rest.startswith(("[", "<<", "--")):
            self._refuse(f"RUN {rest[:20]!r}: only a command for sh")
          self._step({}, rest)
        case _:
          self._refuse(f"{instruction} is not supported; use FROM, WORKDIR, COPY and RUN")
    if not self._image or not self._workdirs:
      self._refuse("it needs FROM and WORKDIR")
    return self._image, self._workdirs, tuple(self._steps)

  def _from(self, rest: str) -> None:
    match = _FROM.fullmatch(rest)
    if self._image or match is None or match[1] not in image_names():
      names = ", ".join(f"sandbox_runner/{name}" for name in image_names())
      self._refuse(f"FROM {rest}: write one FROM, of one of {names}")
    else:
      self._image = match[1]

  def _step(self, files: Mapping[str, bytes], command: str) -> None:
    if not self._workdirs:
      self._refuse("a WORKDIR must come first")
    self._steps.append(Step(files, command, self._workdirs[-1], self._line))

  def _below(self, text: str) -> str:
    """An absolute path, or one from the WORKDIR, as one below the work directory."""
    path = PurePosixPath("/", *self._workdirs[-1:], text)
    if ".." in path.parts or len(path.parts) < 2 or path.parts[1] in (*_SYSTEM, *PLACES):
      self._refuse(f"{text}: the root is read-only; choose a directory like /app")
    return "/".join(path.parts[1:])

  def _copied(self, words: list[str]) -> dict[str, bytes]:
    if len(words) < 2 or words[0].startswith(("-", "[")):
      self._refuse("write COPY SOURCE... DESTINATION, without options")
    *sources, destination = words
    target, files = self._below(destination), {}
    for name in sources:
      source = self._directory / name
      if not source.resolve().is_relative_to(self._directory.resolve()):
        self._refuse(f"COPY {name}: it lies outside of environment/")
      if source.is_dir():
        found = files_below(source)
        found.pop("Dockerfile" if source == self._directory else "", None)
        files |= {f"{target}/{path}": data for path, data in found.items()}
      elif source.is_file():
        into = destination.endswith("/") or destination == "." or len(sources) > 1
        files[f"{target}/{source.name}" if into else target] = source.read_bytes()
      else:
        self._refuse(f"COPY {name}: there is no such file beside the Dockerfile")
    return files

  def _refuse(self, why: str) -> None:
    raise ValueError(f"{self._path}, line {self._line}: {why}")


def _instructions(text: str) -> list[tuple[int, str, str]]:
  """(line, INSTRUCTION, its arguments), continued lines joined, comments left out."""
  found, pending, begin = [], "", 0
  for number, line in enumerate(text.splitlines(), 1):
    if line.lstrip().startswith("#") or (not pending and not line.strip()):
      continue
    begin = begin if pending else number
    if line.rstrip().endswith("\\"):
      pending += line.rstrip()[:-1] + "\n"
      continue
    word, _, rest = (pending + line).strip().partition(" ")
    # As docker has it, the end of a continued line is no end of a command.
    found.append((begin, word.upper(), rest.replace("\n", " ").strip()))
    pending = ""
  return found
