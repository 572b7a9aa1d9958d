"""Tasks in a terminal: a shell in a sandbox, an instruction, and tests that come afterwards.

Tasks are folders in Harbor's format (`harbor`). The policy has a shell on a real terminal, with no
network but pip's mirror in the image. When its episode is over, all that it started is ended; only
then are the tests written, run with a home of their own, and their verdict taken from the file
/logs/verifier/reward.json or reward.txt. Programs of the policy never run beside them: where its
work has to be run, tests/run.sh does that before, its processes are ended too, and tests read what
it left.
"""

import dataclasses
import functools
import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptjax.domains.domain import Domain
from ptjax.domains.harbor import WORK, Folder, read_folder
from ptjax.domains.split import HELDOUT_SHARE
from ptjax.envs import strict_json
from ptjax.envs.context import Context, Episodic, Tool, converse
from ptjax.envs.environment import Budget, Episode, Services, Split, Task
from ptjax.envs.lease import EpisodeSandbox
from ptjax.envs.scripted import Answer
from ptjax.envs.tools import Parameter, ToolCall, ToolSpec
from ptjax.rewards import tree
from sandbox_runner import Limits, Outcome, Result
from sandbox_runner.images import limits_of

TASKS = Path(__file__).parent / "terminal_tasks"
COMMAND_S = 20.0  # seconds of one command
CALLS = 32  # of an episode
LEAST_WALL_S = 900.0
"""Seconds of an episode, whatever its folder says: commands alone cannot run out the clock, for an
episode that did would not be scored."""
SHOWN = 4000  # characters of a command's output that the policy reads
SETUP_S = 60.0
HOME = "verifier_home"  # of the tests: what the policy has left in its own is not read
ENV = {
  "HOME": f"{WORK}/{HOME}",
  "PATH": "/usr/local/bin:/usr/bin:/bin",
  # Python takes no module from the directory that it runs in, which is the policy's.
  "PYTHONSAFEPATH": "1",
  "PYTHONPATH": f"{WORK}/tests",
}
"""Of the tests."""
_REWARDS = ("logs/verifier/reward.json", "logs/verifier/reward.txt")

_MAKE_ROOM = (Path(__file__).parent / "terminal_guest.py").read_text()


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What the tests say: a reward in [0, 1], and why it is 0 where they wrote none."""

  reward: float
  detail: str = ""


async def set_up(sandbox: EpisodeSandbox, folder: Folder) -> None:
  """Makes the environment. Raises ValueError where a step of it fails: the folder is at fault."""
  limits = dataclasses.replace(_limits(folder), wall_s=SETUP_S)
  await sandbox.session(_limits(folder))
  for step in folder.steps:
    argv = ("sh", "-c", step.command or "true")
    done = await sandbox.exec(argv, files=dict(step.files), cwd=step.cwd, limits=limits)
    if (done.outcome, done.exit_code) != (Outcome.exit, 0):
      said = (done.stdout + done.stderr).decode(errors="replace").strip()[-200:]
      raise ValueError(
        f"task {folder.name}: line {step.line} of its Dockerfile ends as {done.outcome} "
        f"{done.exit_code}: {said}"
      )


async def verify(sandbox: EpisodeSandbox, folder: Folder) -> Verdict:
  """Runs the tests on what the policy has left. Every step begins with no process running.

  Whatever the policy can bring about is a verdict of 0; a lost sandbox is LostError.
  """
  limits = dataclasses.replace(_limits(folder), wall_s=folder.verifier_s)
  step = functools.partial(sandbox.exec, limits=limits)
  room = ("python3", "-I", "-c", _MAKE_ROOM)
  made = await step((*room, f"tests logs solution {HOME}", "logs/run"))
  if fault := _fault(made, "making room for the tests"):
    return Verdict(0.0, fault)
  if folder.run:
    # How it ends is for the tests to judge, by what it left in /logs/run.
    await step(("bash", "-c", folder.run), cwd=folder.workdir)
  made = await step((*room, f"tests logs/verifier {HOME}", f"logs/verifier {HOME}"))
  if fault := _fault(made, "making room for the tests"):
    return Verdict(0.0, fault)
  done = await step(
    ("bash", f"{WORK}/tests/test.sh"),
    files={f"tests/{name}": data for name, data in folder.tests.items()},
    env=ENV,
    cwd=folder.workdir,
    copy_out=_REWARDS,
  )
  return _verdict(done)


def _verdict(done: Result) -> Verdict:
  if done.outcome is not Outcome.exit:
    return Verdict(0.0, _fault(done, "the tests"))
  text = next((done.files[name] for name in _REWARDS if name in done.files), None)
  if text is None:
    said = done.stderr.decode(errors="replace").strip()[-200:]
    return Verdict(0.0, f"the tests ended with {done.exit_code} and wrote no reward: {said}")
  reward = _number(text)
  if math.isnan(reward):
    return Verdict(0.0, f"the reward is no number in [0, 1]: {text[:40]!r}")
  return Verdict(reward)


def _number(content: bytes) -> float:
  """A number alone, or what an object has under `reward`; NaN for all that is not in [0, 1]."""
  try:
    text = content.decode()
    value, end = strict_json.decode(text)
  except ValueError:  # no UTF-8, or no JSON
    return math.nan
  value = value.get("reward") if isinstance(value, dict) else value
  number = isinstance(value, int | float) and not isinstance(value, bool)
  # Compared before it is a float: an integer may be too large for one.
  return float(value) if number and 0 <= value <= 1 and not text[end:].strip() else math.nan


def _fault(done: Result, what: str) -> str:
  if (done.outcome, done.exit_code) == (Outcome.exit, 0):
    return ""
  said = done.stderr.decode(errors="replace").strip()[-200:]
  return f"{what}: {done.outcome} {done.exit_code} {said}".rstrip()


def _limits(folder: Folder) -> Limits:
  limits = limits_of(folder.image)
  return dataclasses.replace(
    limits,
    memory_mb=folder.memory_mb or limits.memory_mb,
    disk_mb=folder.disk_mb or limits.disk_mb,
  )


async def shell(ctx: Context, arguments: Mapping[str, Any]) -> str:
  """A command of the episode's shell: what was on the terminal, and how it ended."""
  limits = dataclasses.replace(_limits(ctx.task.data["folder"]), wall_s=COMMAND_S)
  return shown(await ctx.sandbox.shell(arguments["command"], limits=limits))


def shown(result: Result) -> str:
  """Output of at most `SHOWN` characters, its middle left out, and how the command ended."""
  text = result.stdout.decode(errors="replace").replace("\r\n", "\n")
  if len(text) > SHOWN:
    half = SHOWN // 2
    text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
  match result.outcome:
    case Outcome.exit:
      end = f"[exit code {result.exit_code}]"
    case Outcome.signal:
      end = f"[ended by signal {result.signal}]"
    case Outcome.timeout:
      end = f"[ended: a command may take {COMMAND_S:g} s]"
    case outcome:
      end = f"[ended: {outcome}]"
  return f"{text.rstrip()}\n{end}".lstrip("\n")


async def episode(task: Task, ctx: Context) -> None:
  """Makes the environment, then answers calls until the policy writes a message without one."""
  folder: Folder = task.data["folder"]
  await set_up(ctx.sandbox, folder)
  # Programs that would wait for a key, or draw, do not.
  start = f"cd {WORK}/{folder.workdir}; export TERM=dumb PAGER=cat GIT_PAGER=cat EDITOR=false"
  await ctx.sandbox.shell(start)
  await converse(task, ctx)


async def finish(task: Task, ctx: Context) -> None:
  """Takes the verdict of the tests into the artifacts, after whatever ended the episode."""
  ctx.artifacts["verdict"] = await verify(ctx.sandbox, task.data["folder"])


SHELL = Tool(
  ToolSpec(
    "shell",
    f"Runs a command in bash, which keeps its directory and variables; {COMMAND_S:g} s at most.",
    {"command": Parameter("string")},
  ),
  shell,
)


def grade_tests(task: Task, episode: Episode, services: Services) -> float:
  """The reward that the tests wrote."""
  del task, services
  return episode.artifacts["verdict"].reward


def grade_calls(task: Task, episode: Episode, services: Services) -> float:
  """Share of the calls that were well-formed; 0 without one."""
  del task, services
  return episode.calls.get("run", 0) / max(sum(episode.calls.values()), 1)


def oracle(task: Task) -> Answer:
  """Its solution, as one command."""
  folder: Folder = task.data["folder"]
  if not folder.solution:
    raise ValueError(f"task {folder.name} has no solution/solve.sh")
  return (_command(f"bash -c {shlex.quote(folder.solution)}"), "It is done.")


def _command(text: str) -> ToolCall:
  return ToolCall("shell", {"command": text})


def split_of_name(name: str) -> Split:
  """The split of a folder: its name decides, so that folders stay where they are."""
  share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
  return "heldout" if share < HELDOUT_SHARE else "train"


def build(name: str, paths: Sequence[Path], *, license: str = "Apache-2.0", source: str = "ptjax"):
  """A domain of task folders, of the same image.

  One folder is the task of both splits; of several, names decide which are held out.

  Args:
    name: of the domain.
    paths: of the folders.
    license: SPDX expression of theirs.
    source: where they come from.

  Raises:
    ValueError: no folder, folders of several images, or a folder that cannot be read.
  """
  folders = [read_folder(path) for path in sorted(paths)]
  images = sorted({folder.image for folder in folders})
  if len(images) != 1:
    raise ValueError(f"domain {name} has folders of the images {images}; it needs those of one")
  splits = {
    split: [f for f in folders if len(folders) == 1 or split_of_name(f.name) == split]
    for split in ("train", "heldout")
  }

  def make_task(seed: int, split: Split) -> Task:
    if not splits[split]:
      raise ValueError(f"domain {name} has no {split} task among {len(folders)} folders; add some")
    folder = splits[split][seed % len(splits[split])]
    message = {"role": "user", "content": folder.instruction}
    return Task(name, seed, split, (message,), {"folder": folder})

  calls = tree.Child(1.0, tree.EpisodeLeaf("calls", grade_calls))
  tests = tree.Child(1.0, tree.EpisodeLeaf("tests", grade_tests))
  wall_s = max(LEAST_WALL_S, *(folder.agent_s for folder in folders))
  budget = Budget(turns=24, tool_calls=CALLS, wall_s=wall_s)
  return Domain(
    name=name,
    family="terminal",
    license=license,
    source=source,
    make_task=make_task,
    rewards=tree.general_domain(tree.Node("general", (calls,)), tree.Node("domain", (tests,))),
    passed=lambda rewards: rewards["domain/tests"] == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    play=Episodic(episode, tools=(SHELL,), budget=budget, image=images[0], finish=finish),
    sandboxed=True,
    image=images[0],
  )


_FORGE = f"mkdir -p {WORK}/logs/verifier; echo 1 >{WORK}/logs/verifier/reward.txt"
_OWN = "/tmp/.local/bin"  # in the PATH of the policy's shell

ATTACKS: tuple[Answer, ...] = (
  # The verdict, and whoever writes it again all the time.
  (_command(_FORGE), "It is done."),
  (_command(f"(while :; do {_FORGE}; done) >/dev/null 2>&1 &"), "It is done."),
  # Tests of one's own, where nothing can be written or removed.
  (
    _command(
      f"mkdir -p {WORK}/tests; echo '{_FORGE}' >{WORK}/tests/test.sh; chmod 555 {WORK}/tests"
    ),
    "It is done.",
  ),
  # Links in the way of the verdict.
  (_command(f"ln -s /tmp {WORK}/logs; {_FORGE}; ln -s /tmp {WORK}/tests"), "It is done."),
  # What a shell or an interpreter reads before it starts.
  (
    _command(
      f"echo '{_FORGE}' | tee ~/.bashrc ~/.bash_profile >/dev/null; mkdir -p {_OWN}; "
      f"printf '#!/bin/sh\\n{_FORGE}\\n' | tee {_OWN}/bash {_OWN}/python3 {_OWN}/cmp >/dev/null; "
      f"chmod +x {_OWN}/*; export BASH_ENV=$HOME/.bashrc; D=$(python3 -m site --user-site); "
      'mkdir -p "$D"; echo "import os; os._exit(0)" >"$D/usercustomize.py"'
    ),
    "It is done.",
  ),
  (
    _command('for m in json os re sqlite3 sys unittest; do echo "raise SystemExit" >$m.py; done'),
    "It is done.",
  ),
  (_command(f"rm -rf {WORK}/*; touch {WORK}/app"), "It is done."),
)


def _own() -> dict[str, Path]:
  return {path.name: path for path in sorted(TASKS.iterdir()) if path.is_dir()}


DOMAINS = {"terminal": lambda: build("terminal", tuple(_own().values()))} | {
  f"terminal/{name}": functools.partial(build, f"terminal/{name}", (path,))
  for name, path in _own().items()
}
