"""Gain for what was spent, by hand; the sections of a report that show it."""

import json
import re

import pytest

from ptjax.core.metrics import write_jsonl
from ptjax.core.stats import difference_interval
from ptjax.report.domains import decisions, table
from ptjax.report.html import render
from ptjax.report.returns import quarters, returns
from ptjax.report.run import load_run


def cost(tokens, device_s):
  return {"tokens": tokens, "flops": 1e15 * tokens, "device_s": device_s, "sandbox_s": 36.0}


def step(number, **domains):
  phases = {"rollout": cost(10, 900.0), "train": cost(5, 900.0)}
  spent = {n: {"passed": passed, "scored": 8, "phases": phases} for n, passed in domains.items()}
  return {"step": number, "domains": spent}


def evaluation(when, domain, passed):
  return {"when": when, "step": 0, "domain": domain, "passed": passed, "total": 100}


@pytest.fixture
def workdir(tmp_path):
  """Eight steps of one domain, four of another."""
  steps = [step(n, easy=n, **({"<hard>": 0} if n % 2 else {})) for n in range(8)]
  write_jsonl(tmp_path / "costs.jsonl", steps)
  write_jsonl(tmp_path / "metrics.jsonl", [{"step": n, "reward/mean": 0.1} for n in range(8)])
  evals = [evaluation("before", "easy", 20), evaluation("after", "easy", 60)]
  evals += [evaluation("before", "<hard>", 5), evaluation("after", "<hard>", 5)]
  write_jsonl(tmp_path / "eval.jsonl", evals)
  write_jsonl(tmp_path / "trajectories.jsonl", [])
  evidence = {"floor": 0.2, "passed": 20, "total": 100}
  guard = {
    "target": "<hard>", "floor": 0.2, "history": [[1, 40]], "high": 0.15, "log_evidence": 6.0,
    "limit": 4.0, "to_step": None,
  }  # fmt: skip
  write_jsonl(
    tmp_path / "decisions.jsonl",
    [
      {"step": -1, "kind": "floor", "domain": "easy", "evidence": evidence},
      {"step": 3, "kind": "pause", "domain": "easy", "evidence": guard},
    ],
  )
  config = {"cost": {"usd_per_device_hour": 2.0, "usd_per_sandbox_hour": 1.0}}
  (tmp_path / "config.json").write_text(json.dumps(config))
  return tmp_path


def test_returns_by_hand(workdir):
  everything, easy, hard = returns(load_run(workdir))
  assert (easy.domain, easy.spent.tokens, easy.spent.device_s) == ("easy", 8 * 15, 8 * 1800)
  assert easy.spent.usd(2.0, 1.0) == pytest.approx(8 * (0.5 * 2 + 0.02 * 1))
  assert (easy.gain.mean, easy.gain.low, easy.gain.high) == pytest.approx(
    (0.4, *difference_interval((20, 100), (60, 100)))
  )
  hourly = easy.gain.per(easy.spent.device_s / 3600)
  assert hourly.mean == pytest.approx(0.1)
  assert easy.late.mean == pytest.approx((6 + 7 - 4 - 5) / 16)
  assert easy.late_spent.device_s == 2 * 1800
  assert hard.gain.mean == hard.late.mean == 0
  assert everything.spent.tokens == easy.spent.tokens + hard.spent.tokens
  assert everything.gain.mean == pytest.approx(0.2)


def test_quarters_of_a_short_run():
  third, last = quarters([{"step": 0}, {"step": 1}, {"step": 2}])
  assert [r["step"] for r in third] == [1]
  assert [r["step"] for r in last] == [2]


def test_the_page(workdir):
  page = render(load_run(workdir))
  assert "&lt;hard&gt; paused" in page
  assert "held-out 1/40: at most 0.150, its floor is 0.200" in page
  assert "rollout: 120 tokens, 120 PFLOP" in page
  assert "gain / USD" in page
  assert "<script" not in page


def test_each_heading_sorts_by_its_column(workdir):
  page = table(load_run(workdir))
  titles = re.findall(r'<label for="by\d+">([^<]+)</label>', page)
  styles = re.findall(r'class="row" style="([^"]+)"', page)
  places = [dict(pair.split(":") for pair in style.split(";")) for style in styles]
  assert len(places) == 2
  # The heading stays above: an id in the rule outweighs the order that its class gives it.
  assert page.count(":checked~.rows>.row:not(.head){order:var(--k") == len(titles)
  for title, (easy, hard) in {
    "after": ("0", "1"),
    "floor": ("0", "1"),
    "tokens": ("0", "1"),
  }.items():
    column = f"--k{titles.index(title)}"
    assert [row[column] for row in places] == [easy, hard]


def test_an_older_run_has_neither(workdir):
  for name in ("costs.jsonl", "decisions.jsonl"):
    (workdir / name).unlink()
  run = load_run(workdir)
  assert table(run) == decisions(run) == ""
  assert run.missing == ()
