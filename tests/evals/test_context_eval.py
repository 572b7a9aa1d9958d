"""The evaluation of long contexts: its cells, its answers, resuming, the verb."""

import dataclasses
import json

import pytest
from tiny_model import write_tiny_model

from ptjax.core.config import from_json, to_config_dict, to_json
from ptjax.core.metrics import read_jsonl
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.domains.context_tasks import problem, ruler
from ptjax.evals import context_run
from ptjax.evals.context_config import (
  Cell,
  ContextEval,
  DepthConfig,
  FilingsConfig,
  RulerConfig,
  SourceConfig,
  cells,
)
from ptjax.evals.context_run import Asked, evaluate, make_problem
from ptjax.launch.cli import main

LENGTH = 700  # of bytes, which are the tiny model's tokens


@pytest.fixture(scope="module")
def config(tmp_path_factory):
  source = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
  return ContextEval(
    model=SourceConfig(str(source)),
    ruler=RulerConfig(("niah_single_1", "niah_single_2"), (LENGTH,), samples=2),
    needle=DepthConfig("niah_single_1", (LENGTH,), depths=2, samples=1),
    middle=None,
    filings=None,
    slots=4,
  )


def run(config, workdir):
  told = []
  records = evaluate(config, workdir, lambda done, wanted, r: told.append((done, wanted, r["key"])))
  return records, told


@pytest.fixture(scope="module")
def first(config, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("run")
  return workdir, *run(config, workdir)


def test_answers_every_cell_and_scores_it(config, first):
  workdir, records, told = first
  assert [r["key"] for r in records] == [cell.key for cell in cells(config)]
  assert [(done, wanted) for done, wanted, _ in told] == [(i + 1, 6) for i in range(6)]
  assert sorted(r["key"] for r in read_jsonl(workdir / context_run.RESULTS)) == sorted(
    r["key"] for r in records
  )
  for record in records:
    assert LENGTH - 128 <= record["prompt_tokens"] + 128 <= LENGTH
    one = make_problem(
      Cell("ruler", record["task"], LENGTH, record["index"], record["depth"]),
      Asked(byte_tokenizer(), chat=True, prefix=True),
      config.seed,
    )
    assert record["answers"] == one.answers
    assert record["score"] == problem.score(one, record["response"])


def test_goes_on_after_a_kill(config, first, tmp_path):
  """Two answers are there and a third was torn off: the rest comes out as it would have."""
  workdir, records, _ = first
  lines = (workdir / context_run.RESULTS).read_bytes().splitlines(keepends=True)
  (tmp_path / context_run.RESULTS).write_bytes(b"".join(lines[:2]) + lines[2][:40])
  again, told = run(config, tmp_path)
  assert json.loads(json.dumps(again)) == json.loads(json.dumps(records))
  assert len(told) == 4
  assert len(read_jsonl(tmp_path / context_run.RESULTS)) == 6


def test_tokens_are_the_models_own(config):
  asked = Asked(byte_tokenizer(), chat=True, prefix=True)
  ids = asked.encode("hay", "The answer is")
  assert asked.tokenizer.decode(ids).endswith("<|im_start|>assistant\nThe answer is")
  assert asked.count("hay", "The answer is") == len(ids)
  bare = dataclasses.replace(asked, chat=False, prefix=False)
  assert bare.tokenizer.decode(bare.encode("hay", "The answer is")) == "hay\n"


def test_depths_of_rulers_problems_are_even():
  wanted = [
    c.depth for c in cells(ContextEval(needle=None, middle=None, filings=None)) if c.task == "qa_1"
  ]
  for start in (0, 100):  # of each length
    assert problem.depth_histogram(wanted[start : start + 64], 32) == [2] * 32


def test_a_grid_has_both_ends_and_the_same_problems_at_each_depth():
  grid = cells(
    ContextEval(ruler=None, middle=None, filings=None, needle=DepthConfig(depths=3, samples=2))
  )
  assert {c.depth for c in grid} == {0.0, 0.5, 1.0}
  assert len({c.key for c in grid}) == len(grid) == 2 * 3 * 2
  assert [c.tokens for c in grid] == sorted(c.tokens for c in grid)
  asked = Asked(byte_tokenizer(), chat=True, prefix=True)
  same = [make_problem(c, asked, 0).answers for c in grid if (c.index, c.tokens) == (1, 4096)]
  assert len(same) == 3
  assert len(set(same)) == 1


def test_filings_are_asked_at_their_lengths():
  part = FilingsConfig((9000, 12_000), samples=3)
  grid = cells(ContextEval(ruler=None, needle=None, middle=None, filings=part))
  assert [(c.task, c.tokens, c.index) for c in grid] == [
    ("filings", n, i) for n in (9000, 12_000) for i in range(3)
  ]
  asked = Asked(byte_tokenizer(), chat=True, prefix=True)
  one = make_problem(grid[0], asked, 0)
  assert one.match == "number"
  assert len(one.depths) == 2


def test_other_seeds_ask_other_things():
  asked = Asked(byte_tokenizer(), chat=True, prefix=True)
  cell = Cell("ruler", "niah_single_1", LENGTH, 0, None)
  assert make_problem(cell, asked, 0).answers != make_problem(cell, asked, 1).answers


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: RulerConfig(("niah",)), "ruler.tasks: 'niah' is unknown; use some of niah_single_1"),
    (lambda: RulerConfig(lengths=()), r"lengths \(\) of ruler must be different numbers"),
    (lambda: RulerConfig(lengths=(512, 512)), "must be different numbers"),
    (lambda: RulerConfig(samples=0), "samples 0 of ruler must be >= 1"),
    (lambda: DepthConfig("cwe"), "task 'cwe' has no single depth"),
    (lambda: DepthConfig(depths=1), "depths 1 of niah_single_2 must be >= 2"),
    (lambda: ContextEval(slots=0), "slots 0 must be >= 1"),
    (lambda: ContextEval(seed=-1), r"seed -1 must be in \[0, 2\^20\)"),
  ],
)
def test_clear_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_one_fact_tasks_have_one_place():
  for name in ruler.ONE_FACT:
    one = ruler.TASKS[name](0, problem.Room(6000, lambda p, prefix: len(p) // 3))
    assert len(one.depths) == 1


def test_the_verb_writes_and_goes_on(config, first, tmp_path, capsys):
  workdir, records, _ = first
  path = tmp_path / "config.py"
  path.write_text(
    "from ptjax.core.config import from_json, to_config_dict\n"
    "from ptjax.evals.context_config import ContextEval\n"
    f"get_config = lambda: to_config_dict(from_json(ContextEval, {to_json(config)!r}))\n"
  )
  assert main(["eval", "--config", str(path), "--workdir", str(workdir)]) == 0
  out = capsys.readouterr().out
  assert "1/6" not in out  # all was there
  for name in ("summary.json", "summary.md", "report.html", "picture.png", "needle.png"):
    assert (workdir / name).stat().st_size > 200
    assert name in out
  summary = json.loads((workdir / "summary.json").read_text())
  of_mean = summary["ruler"]["mean"][str(LENGTH)]
  assert of_mean["total"] == 4
  assert of_mean["mean"] == sum(r["score"] for r in records if r["part"] == "ruler") / 4
  # By itself, from the stored configuration.
  assert main(["eval", "--workdir", str(workdir), "--config.name=again"]) == 0
  assert "# again: " in (workdir / "summary.md").read_text()
  assert from_json(ContextEval, (workdir / "config.json").read_text()).name == "again"
  # Another seed is another evaluation.
  argv = ["eval", "--config", str(path), "--workdir", str(workdir), "--config.seed=1"]
  assert main(argv) == 2
  assert "holds answers of another model, seed or way to ask" in capsys.readouterr().err


def test_the_configuration_goes_round():
  config = ContextEval(middle=None)
  assert from_json(ContextEval, to_json(config)) == config
  assert to_config_dict(config).ruler.samples == 100
