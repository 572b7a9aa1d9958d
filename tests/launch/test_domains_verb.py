"""`domains`: what it lists, shows, admits and plays."""

import io
import json

import pytest

from ptjax.launch.cli import main

BROKEN = """
import dataclasses
from ptjax.domains import addends

BROKEN = dataclasses.replace(addends.build(), name="chess", oracle=lambda task: "e4")
DOMAINS = {"chess": lambda: BROKEN}
"""


def call(capsys, *argv):
  status = main(["domains", *argv])
  return status, capsys.readouterr()


def test_lists_by_pattern(capsys):
  status, out = call(capsys, "reasoning/*sudoku", "addends", "--json")
  assert status == 0
  assert [row["name"] for row in json.loads(out.out)] == [
    "reasoning/mini_sudoku",
    "reasoning/sudoku",
    "addends",
  ]
  _, out = call(capsys, "addends")
  assert "Apache-2.0" in out.out


def test_samples_are_those_that_training_sees(capsys):
  from ptjax.domains import catalog

  _, out = call(capsys, "reasoning/gcd@1", "--sample", "2", "--seed", "5", "--json")
  shown = json.loads(out.out)
  task = catalog.builder("reasoning/gcd@1")().make_task(6, "train")
  assert shown[1]["messages"] == [dict(message) for message in task.messages]
  _, out = call(capsys, "reasoning/gcd@1", "--sample", "1", "--seed", "6")
  assert task.messages[0]["content"] in out.out


def test_admits(capsys):
  status, out = call(capsys, "addends", "reasoning/maze", "--admit", "--tasks", "2", "--json")
  assert status == 0
  assert [row["admitted"] for row in json.loads(out.out)] == [True, True]


def test_a_fault_is_shown_and_told_by_the_exit_status(capsys, tmp_path, monkeypatch):
  (tmp_path / "broken_domains.py").write_text(BROKEN)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setenv("COLUMNS", "200")
  status, out = call(capsys, "chess", "--module", "broken_domains", "--admit", "--tasks", "2")
  assert status == 1
  assert "refused" in out.out
  assert "the oracle earns" in out.out
  assert "0 of 1 domains admitted, on 4 tasks each" in out.out


@pytest.mark.parametrize(
  ("answer", "verdict"), [("45+55\n", "scored, passed"), ("1", "not passed")]
)
def test_plays(capsys, monkeypatch, answer, verdict):
  from ptjax.domains import addends

  total = addends.make_task(0, "train").data["sum"]
  text = addends.oracle(addends.make_task(0, "train")) if answer.endswith("\n") else answer
  monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))
  status, out = call(capsys, "addends", "--play")
  assert status == 0
  assert str(total) in out.out
  assert verdict in out.out


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["adends"], "did you mean addends?"),
    (["x*"], "no domain fits 'x*'"),
    (["--play"], "--play wants one domain"),
    (["addends", "--sample", "0"], "--sample 0 must be at least 1"),
    (["addends", "--admit", "--tasks", "0"], "--tasks 0 must be at least 1"),
  ],
)
def test_mistakes(capsys, argv, message):
  status, out = call(capsys, *argv)
  assert status == 2
  assert message in out.err
