import json

import pytest

from ptjax.data.annotated_pairs import read_pairs
from ptjax.launch import view
from ptjax.launch.cli import main


@pytest.fixture
def run_dir(tmp_path):
  """A run of two steps and two domains, its last metrics line torn by a kill."""
  episode = {"prompt": "2+2?", "passed": True, "reward": 0.5, "outcome": "scored"}
  files = {
    "metrics.jsonl": [
      {"step": 1, "reward/mean": 0.25, "policy/kl": None},
      {"step": 2, "reward/mean": 0.5},
    ],
    "eval.jsonl": [
      {"when": "before", "step": 0, "domain": "code", "passed": 1, "total": 4},
      {"when": "after", "step": 2, "domain": "code", "passed": 3, "total": 4},
    ],
    "trajectories.jsonl": [
      {**episode, "step": 1, "phase": "train", "domain": "code", "response": "old"},
      {**episode, "step": 2, "phase": "train", "domain": "code", "response": "\x1b[31m[red]4"},
      {
        "step": 2,
        "phase": "train",
        "domain": "math",
        "prompt": "1+1?",
        "response": "lost",
        "passed": False,
        "reward": None,
        "outcome": "infra_failed",
      },
    ],
  }
  for name, rows in files.items():
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 3, "rew')
  (tmp_path / "config.json").write_text("{}")
  return tmp_path


def test_view_prints_the_run_and_writes_its_report(run_dir, capsys):
  assert main(["view", str(run_dir)]) == 0
  out = capsys.readouterr().out
  assert "last recorded step: 2" in out
  assert "25.0%" in out
  assert "75.0%" in out
  rows = {
    line.split("│")[1].strip(): line.split("│")[2:-1] for line in out.splitlines() if "│" in line
  }
  assert [cell.strip() for cell in rows["reward/mean"]] == ["0.25", "0.5", "0.25", "0.5"]
  assert "\\x1b[31m[red]4" in out, "control codes and markup of a model stay text"
  assert "\x1b" not in out
  assert "old" not in out, "the latest sample of a domain only"
  assert "infra_failed" in out
  assert f"report  {run_dir / 'report.html'}" in out
  assert (run_dir / "report.html").is_file()


def test_view_narrows_to_a_domain(run_dir, capsys):
  assert main(["view", str(run_dir), "--domain", "code", "--samples", "2"]) == 0
  out = capsys.readouterr().out
  assert "old" in out
  assert "lost" not in out
  assert main(["view", str(run_dir), "--domain", "cod"]) == 2
  assert "no domain cod in this run; use one of ['code', 'math']" in capsys.readouterr().err


def test_an_unscored_episode_counts_in_no_mean(run_dir, capsys):
  assert main(["view", str(run_dir), "--samples", "0"]) == 0
  lines = [line for line in capsys.readouterr().out.splitlines() if "train" in line]
  cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
  assert cells == [
    ["train", "code", "2", "100.0%", "0.500", "0"],
    ["train", "math", "1", "-", "nan", "1"],
  ]


def test_long_text_is_cut():
  text = view.printable("x" * (view.CHARACTERS_SHOWN + 5))
  assert text.endswith("\n[5 characters more]")


def test_the_review_queue(run_dir, capsys):
  answer = {
    "id": "2.0", "step": 2, "why": "suspicious", "oddness": 1.5, "domain": "code", "license": "MIT",
    "messages": [{"role": "user", "content": "2+2?"}], "response": "\x1bgamed", "reward": 1.0,
  }  # fmt: skip
  (run_dir / "review.jsonl").write_text(json.dumps(answer) + "\n")
  assert main(["view", str(run_dir)]) == 0
  out = capsys.readouterr().out
  assert "review queue: 1 to judge, 0 judged" in out
  assert "2.0: code, suspicious, oddness 1.50" in out
  assert "\\x1bgamed" in out
  pairs = str(run_dir / "pairs.jsonl")
  judge = ["view", str(run_dir), "--verdict", "2.0=bad", "--annotator", "a17"]
  assert main([*judge, "--preferences", pairs]) == 0
  assert "0 to judge, 1 judged" in capsys.readouterr().out
  (pair,) = read_pairs(pairs, unpaired=True)
  assert pair.rejected == "\x1bgamed"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [(["--verdict", "2.0"], "must be ID=good or ID=bad"), (["--verdict", "2.0=bad"], "--annotator"),
   (["--verdict", "2.0=bad", "--annotator", "a"], "no answer '2.0'")],
)  # fmt: skip
def test_wrong_verdicts(run_dir, capsys, arguments, message):
  assert main(["view", str(run_dir), *arguments]) == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(("number", "shown"), [(20, True), (21, False)])
def test_metrics_of_single_domains_are_left_out_where_there_are_many(
  run_dir, capsys, number, shown
):
  names = [f"logic/d{i}" for i in range(number)]
  evals = [{"when": "before", "step": 0, "domain": name, "passed": 1, "total": 4} for name in names]
  step = {f"{kind}/{name}": 0.5 for name in names for kind in ("pass", "reward")}
  records = {"eval": evals, "metrics": [{"step": 1, "domains/pass_q50": 0.5, **step}]}
  for name, rows in records.items():
    (run_dir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (run_dir / "trajectories.jsonl").write_text("")
  assert main(["view", str(run_dir)]) == 0
  out = capsys.readouterr().out
  assert ("pass/logic/d0" in out) == ("reward/logic/d0" in out) == shown
  assert "domains/pass_q50" in out
