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


@pytest.mark.parametrize(
  ("value", "expected", "equal"),
  [
    (1, 1, True),
    (True, 1, False),
    (1.0, 1, False),
    (0, False, False),
    ([1, [2]], [1, [2]], True),
    ([1, True], [1, 1], False),
    ([1], [1, 1], False),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1.0}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),
    (None, None, True),
    ("1", 1, False),
  ],
)
def test_same(value, expected, equal):
  assert code_grading.same(value, expected) is equal


def test_read_values_trusts_no_line():
  lines = [
    b'{"test": 0, "value": [1]}',
    b'{"test": 1, "value": 2}',
    b'{"test": 1, "value": 3}',
    b'{"test": true, "value": 4}',
    b'{"test": 5}',
    b"[1]",
    b"\xff\xfe",
    b"{" * 10_000,
    b"[" * 100_000,
    b'{"test": 6, "value": ' + b"9" * 5000 + b"}",
    b'{"test": 7, "val',
  ]
  assert code_grading.read_values(b"\n".join(lines)) == {0: [1]}


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
