"""`domains`: what it lists, shows, admits and plays."""

import io
import json

import pytest

from ptjax.launch.cli import main

BROKEN = """
import dataclasses
from ptjax.domains import addends

def make_task(seed, split):
  return dataclasses.replace(addends.make_task(seed, split), domain="chess")

BROKEN = dataclasses.replace(
  addends.build(), name="chess", make_task=make_task, oracle=lambda task: "e4"
)
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


def turns_of_the_oracle(seed=0):
  from ptjax.domains import calculator
  from ptjax.envs.scripted import say
  from ptjax.envs.tool_formats import FENCED

  domain = calculator.build()
  specs = [tool.spec for tool in calculator.TOOLS]
  return say(domain.oracle(domain.make_task(seed, "train")), FENCED, specs)


def test_plays_turn_by_turn_and_replays(capsys, monkeypatch, tmp_path):
  turns, path = turns_of_the_oracle(), tmp_path / "played.jsonl"
  monkeypatch.setattr("sys.stdin", io.StringIO("\n.\n".join(turns)))  # the end of input ends it
  status, out = call(capsys, "calculator", "--play", "--record", str(path))
  assert status == 0
  assert out.out.count("your turn") == len(turns)
  assert " a piece<|im_end|>" in out.out  # what the policy reads, each text once
  assert out.out.count("Answer: 12.50") == 1
  assert "scored, passed" in out.out
  assert [json.loads(line)["responses"] for line in path.read_text().splitlines()] == [turns]
  status, out = call(capsys, "--replay", str(path))
  assert (status, out.out) == (0, "record 0, calculator, seed 0: shown the same again; passed\n")
  record = json.loads(path.read_text())
  record["observations"][1] = "free"
  path.write_text(json.dumps(record) + "\n")
  status, out = call(capsys, "calc*", "--replay", str(path), "--json")
  assert status == 1
  (row,) = json.loads(out.out)
  assert row["difference"].startswith("observation 1 differs at character 0: 'free' was")
  status, out = call(capsys, "terminal", "--replay", str(path))
  assert (status, "none of the domains named" in out.err) == (2, True)


def test_the_right_turns_are_shown(capsys):
  _, out = call(capsys, "calculator", "--sample", "1", "--json")
  assert json.loads(out.out)[0]["right"] == turns_of_the_oracle()
  _, out = call(capsys, "calculator", "--sample", "1")
  assert out.out.count("[right]") == len(turns_of_the_oracle())


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["adends"], "did you mean addends?"),
    (["x*"], "no domain fits 'x*'"),
    (["--play"], "--play wants one domain"),
    (["addends", "--record", "x"], "--record writes down what --play plays; add --play"),
    (["addends", "--play", "--record", "x"], "episodes of domain addends have one turn"),
    (["addends", "--sample", "0"], "--sample 0 must be at least 1"),
    (["addends", "--admit", "--tasks", "0"], "--tasks 0 must be at least 1"),
  ],
)
def test_mistakes(capsys, argv, message):
  status, out = call(capsys, *argv)
  assert status == 2
  assert message in out.err


def test_pictures_of_what_cannot_be_drawn(capsys, tmp_path):
  status, out = call(capsys, "addends", "--sample", "1", "--pictures", str(tmp_path))
  assert status == 2
  assert "none of these domains draws its answers" in out.err
  status, out = call(capsys, "solids/manifold", "--pictures", str(tmp_path))
  assert status == 2
  assert "add --sample 1" in out.err
