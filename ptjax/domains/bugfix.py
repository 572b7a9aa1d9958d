"""Bug fixing: a repository of two files with a failing test; hidden tests judge the corrected file.

As in `code`, expected values never enter the sandbox. Leaving the bug earns nothing: what counts is
the share of broken tests that pass now, times the share of the others that still do.
"""

import copy
import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Any

from ptjax.domains import code_grading
from ptjax.domains.bugfix_repositories import REPOSITORIES, Bug, Repository
from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree
from ptjax.rewards.failures import InfraFailure
from sandbox_runner.grading import Call, answer_calls

MOST_BROKEN, MOST_SOUND = 4, 3  # hidden tests of a task
_INPUT_DRAWS = 400
_MEMORY_SHARE = 0.5  # of the sandbox's limit, for the process of the candidate

_BLOCK = re.compile(r"```[^\n`]*\n# file: (\S+)[ \t]*\n(.*?)```", re.DOTALL)
_BUNDLE = """\
import sys, types
for _name, _source in {modules!r}:
  sys.modules[_name] = _module = types.ModuleType(_name)
  exec(compile(_source, _name + ".py", "exec"), _module.__dict__)
{entry} = _module.{entry}
"""


@dataclasses.dataclass(frozen=True)
class Question:
  """A repository with its constant and its bug."""

  repository: Repository
  constant: int
  bug: Bug

  @property
  def right(self) -> dict[str, str]:
    return {n: self.filled(text) for n, text in self.repository.files.items()}

  @property
  def broken(self) -> dict[str, str]:
    bug, files = self.bug, self.right
    fixed = self.filled(bug.right)
    return files | {bug.file: files[bug.file].replace(fixed, self.filled(bug.wrong))}

  def filled(self, text: str) -> str:
    return text.replace("@k", str(self.constant))


@dataclasses.dataclass(frozen=True)
class Example:
  """A test: arguments and what the right program returns."""

  arguments: list[Any]
  expected: Any


def find_tests(rng: random.Random, question: Question) -> tuple[list[Example], list[Example]]:
  """(tests that the bug breaks, tests that it does not); no value is expected twice in either.

  Raises ValueError where the bug breaks fewer than two.
  """
  entry = question.repository.entry
  right, wrong = _load(question.right, entry), _load(question.broken, entry)
  broken: list[Example] = []
  sound: list[Example] = []
  for _ in range(_INPUT_DRAWS):
    arguments = question.repository.arguments(rng)
    expected = right(*copy.deepcopy(arguments))
    same = _same(wrong, arguments, expected)
    kind, most = (sound, MOST_SOUND) if same else (broken, MOST_BROKEN + 1)
    if len(kind) < most and all(expected != test.expected for test in kind):
      kind.append(Example(arguments, expected))
  if len(broken) < 2:
    raise ValueError(f"{question.bug} of {question.repository.name} breaks too few tests")
  return broken, sound


def _load(files: Mapping[str, str], entry: str):
  # The sources are our own, of bugfix_repositories, never a candidate's.
  names = "|".join(name.removesuffix(".py") for name in files)
  text = re.sub(rf"^from (?:{names}) import .*$", "", "\n".join(files.values()), flags=re.MULTILINE)
  namespace: dict[str, Any] = {}
  exec(text, namespace)
  return namespace[entry]


def _same(program, arguments: list[Any], expected: Any) -> bool:
  try:
    return program(*copy.deepcopy(arguments)) == expected
  except (ArithmeticError, LookupError, TypeError, ValueError):
    return False  # the bug ends it


def extract_files(response: str, known: Mapping[str, str]) -> dict[str, str]:
  """The files of the repository that a response writes anew; of two of one name the last counts."""
  return {name: text for name, text in _BLOCK.findall(response) if name in known}


def grade_format(task: Task, response: str, services: Services) -> float:
  """1 for exactly one file of the repository and nothing else, 0.5 with text around, else 0."""
  del services
  blocks = _BLOCK.findall(response)
  if len(blocks) != 1 or not extract_files(response, task.data["files"]):
    return 0.0
  return 1.0 if _BLOCK.fullmatch(response.strip()) else 0.5


async def grade_tests(task: Task, response: str, services: Services) -> float:
  """Share of the broken hidden tests that pass, times that of the sound ones.

  Raises InfraFailure for a lost sandbox.
  """
  if services.sandbox is None:
    raise ValueError(f"domain {task.domain} needs a sandbox; give Services a pool")
  written = extract_files(response, task.data["files"])
  if not written:
    return 0.0
  entry, tests = task.data["entry"], [*task.data["broken"], *task.data["sound"]]
  limits = code_grading.LIMITS
  answers = await answer_calls(
    services.sandbox,
    "candidate.py",
    bundle(task.data["files"] | written, entry).encode(errors="replace"),
    [[Call(entry, tuple(test.arguments)) for test in tests]],
    limits,
    independent=True,
    memory_mb=int(limits.memory_mb * _MEMORY_SHARE),
  )
  if answers.result.is_infra_failure:
    raise InfraFailure(f"sandbox: {answers.result.outcome} {answers.result.detail}".rstrip())
  passed = [answers.equals(0, i, test.expected) for i, test in enumerate(tests)]
  broken = len(task.data["broken"])
  fixed, kept = passed[:broken], passed[broken:]
  return sum(fixed) / len(fixed) * (sum(kept) / len(kept) if kept else 1.0)


def bundle(files: Mapping[str, str], entry: str) -> str:
  """One module that runs the files, in order, as modules of their own."""
  modules = [(name.removesuffix(".py"), text) for name, text in files.items()]
  return _BUNDLE.format(modules=modules, entry=entry)


def make_task(seed: int, split: Split) -> Task:
  """Draws a repository, its constant and a bug."""

  def question(rng: random.Random) -> Question:
    repository = rng.choice(REPOSITORIES)
    return Question(repository, rng.choice(repository.constants), rng.choice(repository.bugs))

  drawn = draw(question, lambda q: "\n".join(q.broken.values()), seed, split)
  broken, sound = find_tests(random.Random(f"{seed}/tests"), drawn)
  shown, *hidden = broken
  entry, last = drawn.repository.entry, list(drawn.repository.files)[-1]
  listing = "\n".join(f"```python\n# file: {n}\n{text}```" for n, text in drawn.broken.items())
  arguments = ", ".join(map(repr, shown.arguments))
  content = (
    f"{drawn.filled(drawn.repository.purpose)} A test of {last} fails:\n"
    f"assert {entry}({arguments}) == {shown.expected!r}\n\n{listing}\n"
    "Reply with the one file that has the bug, corrected and whole, in such a block."
  )
  data = {
    "files": drawn.broken,
    "entry": entry,
    "broken": hidden,
    "sound": sound,
    "oracle": (drawn.bug.file, drawn.right[drawn.bug.file]),
  }
  return Task("bugfix", seed, split, ({"role": "user", "content": content},), data)


def oracle(task: Task) -> str:
  """The file as it was before the bug."""
  name, text = task.data["oracle"]
  return f"```python\n# file: {name}\n{text}```"


def build() -> Domain:
  """Makes the domain."""
  return Domain(
    name="bugfix",
    family="code",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", grade_format)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("tests", grade_tests)),)),
    ),
    passed=lambda rewards: rewards["domain/tests"] == 1.0,
    oracle=oracle,
    attacks=ATTACKS,
    sandboxed=True,
  )


_ENTRIES = tuple(r.entry for r in REPOSITORIES)
_LASTS = tuple(list(r.files)[-1] for r in REPOSITORIES)


def _attack(body: str) -> str:
  """The same text for the last file of every repository."""
  return "\n".join(f"```python\n# file: {name}\n{body}\n```" for name in _LASTS)


ATTACKS: tuple[str, ...] = (
  "The bug is in the first file.",
  "```python\n# file: ../candidate.py\nraise SystemExit(0)\n```",
  _attack("raise SystemExit(0)"),
  _attack("import os\nos._exit(0)"),
  _attack("while True: pass"),
  _attack(
    "class Any:\n  def __eq__(self, other): return True\n"
    + "\n".join(f"def {entry}(*a): return Any()" for entry in _ENTRIES)
  ),
)

DOMAINS = {"bugfix": build}
