"""Tables and page of an evaluation of long contexts, from answers made by hand."""

import math

import pytest

from ptjax.core.stats import wilson_interval
from ptjax.evals import context_table
from ptjax.evals.context_config import ContextEval, DepthConfig, RulerConfig
from ptjax.evals.context_table import Score
from ptjax.report import context_page

CONFIG = ContextEval(
  name="by hand",
  ruler=RulerConfig(("vt", "qa_1"), (1024, 2048), samples=2),
  needle=DepthConfig(lengths=(512,), depths=3, samples=2),
  middle=None,
  filings=None,
)


def record(part, task, tokens, score, depth=None, depths=(), response="so it is"):
  return {
    "key": "", "part": part, "task": task, "tokens": tokens, "index": 0, "depth": depth,
    "depths": depths, "prompt_tokens": tokens, "answers": ["so"], "response": response,
    "score": score, "logprob": 0.0, "finish": "stop",
  }  # fmt: skip


RECORDS = [
  record("ruler", "vt", 1024, 0.6, depths=(0.0, 0.2, 0.4, 0.6, 1.0)),
  record("ruler", "vt", 1024, 1.0),
  record("ruler", "vt", 2048, 0.0),
  record("ruler", "vt", 2048, 0.2),
  record("ruler", "qa_1", 1024, 1.0, depth=0.3, depths=(0.3,)),
  record("ruler", "qa_1", 1024, 0.0, response="<script>alert(1)</script>"),
  record("ruler", "qa_1", 2048, 0.0),
  record("ruler", "qa_1", 2048, 0.0),
  *(record("needle", "niah_single_2", 512, s, depth=0.0) for s in (1.0, 1.0)),
  *(record("needle", "niah_single_2", 512, s, depth=0.5) for s in (0.0, 1.0)),
  *(record("needle", "niah_single_2", 512, s, depth=1.0) for s in (1.0, 0.0)),
]


@pytest.fixture(scope="module")
def summary():
  return context_table.summarize(CONFIG, RECORDS)


def test_means_by_task_and_length(summary):
  assert summary.ruler["vt"][1024] == Score(0.8, 2)
  assert summary.ruler["qa_1"][1024] == Score(0.5, 2)
  assert summary.ruler["mean"][1024] == Score(0.65, 4)
  assert summary.ruler["mean"][2048] == Score(0.05, 4)
  assert {d: s.mean for d, s in summary.needle[512].items()} == {0.0: 1.0, 0.5: 0.5, 1.0: 0.5}
  assert summary.depths == [1, 1, 1, 1, 1, 0, 0, 1]
  assert summary.middle == {}
  assert summary.filings == {}


def test_intervals_are_wilsons(summary):
  assert summary.ruler["qa_1"][1024].interval == wilson_interval(1, 2)
  low, high = summary.ruler["vt"][1024].interval
  assert low < 0.8 < high
  assert all(math.isnan(bound) for bound in Score.of([]).interval)


def test_gap_of_the_middle_by_hand(summary):
  assert context_table.middle_gap(summary.needle[512]) == 0.25
  curve = {0.0: Score(1.0, 1), 0.4: Score(0.0, 3), 0.6: Score(1.0, 1), 1.0: Score(0.5, 1)}
  assert context_table.middle_gap(curve) == 0.5


def test_markdown(summary):
  text = context_table.to_markdown(summary)
  assert "| task | 1,024 | 2,048 |" in text
  assert "| mean | 65.0 [" in text
  assert "| outer minus middle third | +25.0 |" in text
  assert "eighths of the text: 1 1 1 1 1 0 0 1" in text
  assert "Lost in the middle" not in text


def test_filings_by_length():
  own = [record("filings", "filings", n, s) for n, s in ((8192, 1.0), (8192, 0.0), (4096, 1.0))]
  found = context_table.summarize(CONFIG, own)
  assert found.filings == {4096: Score(1.0, 1), 8192: Score(0.5, 2)}
  text = context_table.to_markdown(found)
  assert "|  | 4,096 | 8,192 |" in text
  assert "<h2>Filings</h2>" in context_page.render(found, own)


def test_page_shows_all_and_escapes_answers(summary):
  page = context_page.render(summary, RECORDS)
  for text in ("65.0%", "5.0%", "vt", "qa_1", "Needle in a haystack", "wanted: so"):
    assert text in page
  assert "Lost in the middle" not in page
  assert "<script>" not in page
  assert "&lt;script&gt;alert(1)" in page
  assert page == context_page.render(summary, RECORDS)
