"""Extraction, comparison and templates of the code domain: everything but the sandbox."""

import asyncio
import builtins
import itertools
import json
import keyword
import random

import pytest

from ptjax.domains import code, code_grading, code_templates
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services, Task

SERVICES = Services()


@pytest.mark.parametrize(
  ("response", "source"),
  [
    ("def f(): pass", "def f(): pass"),
    ("```python\nx\n```", "x\n"),
    ("Sure:\n```\nx\n```\nand\n```\ny\n```", "x\n"),
    ("```py\ncut off", "cut off"),
    ("", ""),
  ],
)
def test_extract_code(response, source):
  assert code_grading.extract_code(response) == source


@pytest.mark.parametrize(
  ("response", "score"),
  [
    ("```python\ndef f(n):\n  return n\n```", 1.0),
    ("def f(n):\n  return n", 1.0),
    ("Here:\n```python\ndef f(n):\n  return n\n```", 0.5),
    ("```python\ndef f(n):\n  return n\n```\nIt returns n.", 0.5),
    ("```\ndef f(n): return n\n```\n```\ndef f(n): return n\n```", 0.5),
    ("```python\ndef f(n):\n  return n", 0.5),
    ("```python\ndef g(n):\n  return n\n```", 0.0),
    ("```python\ndef f(n) return\n```", 0.0),
    ("f is a function", 0.0),
    ("", 0.0),
    ("\0", 0.0),
  ],
)
def test_format(response, score):
  task = Task("code", 0, "train", (), {"function": "f"})
  assert code_grading.grade_format(task, response, SERVICES) == score


def questions():
  for template in code_templates.TEMPLATES:
    for values in itertools.product(*template.constants.values()):
      constants = dict(zip(template.constants, values, strict=True))
      yield code.ask(template, constants), template


def test_every_question_has_tests_that_no_constant_passes():
  assert len(code_templates.TEMPLATES) >= 40
  assert len({t.name for t in code_templates.TEMPLATES}) == len(code_templates.TEMPLATES)
  for question, template in questions():
    inputs, expected = code.draw_tests(random.Random(0), template, question, 10)
    assert len(inputs) == len(expected) == 10
    assert max(expected.count(value) for value in expected) <= 5
    assert json.loads(json.dumps([inputs, expected])) == [inputs, expected]


def test_template_names_serve_as_function_names():
  for template in code_templates.TEMPLATES:
    assert template.name.isidentifier()
    assert not keyword.iskeyword(template.name)
    assert not hasattr(builtins, template.name)


def test_questions_with_the_same_text_mean_the_same():
  meaning = {}
  for question, _ in questions():
    assert meaning.setdefault(question.spec, question) == question


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"templates": ("nope",)}, "nope"),
    ({"templates": ()}, "empty"),
    ({"functions": ("1f",)}, "identifiers"),
    ({"min_tests": 5, "max_tests": 4}, "min_tests <= max_tests"),
  ],
)
def test_configuration_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    code.Config(**changes)


def test_no_sandbox_is_an_error():
  domain = code.build()
  task = domain.make_task(0, "train")
  with pytest.raises(ValueError, match="needs a sandbox"):
    asyncio.run(grade_response(domain, task, "", SERVICES))
