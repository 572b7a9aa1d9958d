"""Small Python functions from a one-sentence specification, graded by hidden tests.

How an answer is graded: `code_grading`. The task shapes: `code_templates`.
"""

import copy
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptjax.domains import code_grading, code_templates
from ptjax.domains.code_templates import Template
from ptjax.domains.domain import Domain
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree
from sandbox_runner import Limits

_MAX_INPUT_DRAWS = 1000


@dataclasses.dataclass(frozen=True)
class Config:
  """Which tasks, and how they are run.

  Attributes:
    name: name of the domain.
    templates: names of the task shapes to draw from.
    functions: names that a function may be asked to have; empty: the name of its template.
    min_tests, max_tests: hidden tests a task, inclusive.
    system: system message; "" leaves the one of the chat template.
    limits: of one grading run.
  """

  name: str = "code"
  templates: tuple[str, ...] = tuple(t.name for t in code_templates.TEMPLATES)
  functions: tuple[str, ...] = ()
  min_tests: int = 6
  max_tests: int = 10
  system: str = "Reply with one short Python function and nothing else."
  limits: Limits = code_grading.LIMITS

  def __post_init__(self):
    known = {t.name for t in code_templates.TEMPLATES}
    unknown = sorted(set(self.templates) - known)
    if unknown or not self.templates:
      raise ValueError(f"templates {unknown or 'are empty'}; known: {', '.join(sorted(known))}")
    if not all(name.isidentifier() for name in self.functions):
      raise ValueError(f"functions must be Python identifiers, got {self.functions}")
    if not 1 <= self.min_tests <= self.max_tests:
      raise ValueError(
        f"tests must be 1 <= min_tests <= max_tests, got {self.min_tests}, {self.max_tests}"
      )


@dataclasses.dataclass(frozen=True)
class Question:
  """A template with its constants chosen: what is asked, whatever the function is called."""

  template: str
  parameters: str
  spec: str
  expression: str


def define(name: str, question: Question) -> str:
  """Source of the reference function."""
  return f"def {name}({question.parameters}):\n  return {question.expression}\n"


def build(config: Config | None = None) -> Domain:
  """Makes the domain."""
  config = config or Config()
  templates = tuple(t for t in code_templates.TEMPLATES if t.name in config.templates)

  def make_task(seed: int, split: Split) -> Task:
    question = draw(lambda rng: _draw_question(rng, templates), lambda q: q.spec, seed, split)
    rng = random.Random(f"{seed}/tests")
    template = next(t for t in templates if t.name == question.template)
    function = rng.choice(config.functions or (template.name,))
    count = rng.randint(config.min_tests, config.max_tests)
    inputs, expected = draw_tests(rng, template, question, count)
    system = ({"role": "system", "content": config.system},) if config.system else ()
    signature = f"{function}({question.parameters})"
    content = f"Write a Python function {signature} that returns {question.spec}."
    return Task(
      domain=config.name,
      seed=seed,
      split=split,
      messages=(*system, {"role": "user", "content": content}),
      data={
        "template": question.template,
        "function": function,
        "inputs": inputs,
        "expected": expected,
        "oracle": define(function, question),
      },
    )

  async def grade_tests(task: Task, response: str, services: Services) -> float:
    return await code_grading.grade_tests(task, response, services, config.limits)

  return Domain(
    name=config.name,
    family="code",
    license="Apache-2.0",
    source="procedural, ptjax",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", code_grading.grade_format)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("tests", grade_tests)),)),
    ),
    passed=lambda rewards: rewards["domain/tests"] == 1.0,
    oracle=lambda task: f"```python\n{task.data['oracle']}```",
    attacks=ATTACKS,
    sandboxed=True,
  )


def ask(template: Template, constants: Mapping[str, int | str]) -> Question:
  """The question that a template asks with these constants."""
  return Question(
    template=template.name,
    parameters=template.parameters,
    spec=template.spec.format(**constants),
    expression=template.expression.format(**constants),
  )


def _draw_question(rng: random.Random, templates: Sequence[Template]) -> Question:
  template = rng.choice(templates)
  return ask(template, {name: rng.choice(values) for name, values in template.constants.items()})


def draw_tests(
  rng: random.Random, template: Template, question: Question, count: int
) -> tuple[list[list[Any]], list[Any]]:
  """`count` different argument lists and their expected values.

  No value is expected by more than half of the tests, so a constant answer passes half at most.
  """
  reference = _reference(question)
  inputs: list[list[Any]] = []
  expected: list[Any] = []
  for _ in range(_MAX_INPUT_DRAWS):
    arguments = [make(rng) for make in template.draws]
    value = reference(*copy.deepcopy(arguments))
    if arguments not in inputs and expected.count(value) < (count + 1) // 2:
      inputs.append(arguments)
      expected.append(value)
    if len(inputs) == count:
      return inputs, expected
  raise ValueError(
    f"template {template.name} gave {len(inputs)} of {count} tests in {_MAX_INPUT_DRAWS} draws; "
    "widen its argument generators"
  )


def _reference(question: Question) -> Callable[..., Any]:
  # The source is our own: an expression of code_templates, never a candidate's.
  namespace: dict[str, Any] = {}
  exec(define("reference", question), namespace)
  return namespace["reference"]


ATTACKS: tuple[str, ...] = (
  "",
  "I cannot do that.",
  "import os\nos._exit(0)",
  "while True: pass",
  'def f(*a):\n  print(\'{"test": 0, "value": 0}\')\nraise SystemExit(0)',
  "import json\njson.dumps = lambda *a, **k: '[1, true]'\ndef f(*a): return object()",
  "import os\nwhile True: os.fork()",
)


DOMAINS = {"code": build}
