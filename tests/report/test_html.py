"""The report: numbers, escaping, and runs that were killed or recorded only in part."""

import html
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from ptjax.core.metrics import MetricsWriter
from ptjax.report import figures
from ptjax.report.html import flatten, write_picture, write_report
from ptjax.report.markup import Markup, el, join
from ptjax.report.run import load_run
from ptjax.report.samples import paired

HOSTILE = '<script>alert(1)</script></pre>\x00\x1b[31m \ud800 & "quoted"'


def write_lines(path, records):
  path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def trajectory(phase, domain, prompt, response, reward, **more):
  return {
    "phase": phase, "step": 0, "domain": domain, "prompt": prompt, "response": response,
    "reward": reward, "rewards": {"": reward, "tests": reward}, "passed": reward == 1.0,
    "outcome": "scored", "finish_reason": "stop",
  } | more  # fmt: skip


def evaluation(when, step, domain, passed, total):
  return {"when": when, "step": step, "domain": domain, "passed": passed, "total": total}


def write_run(tmp_path):
  """A finished run of 20 steps on two domains."""
  with MetricsWriter(tmp_path, tensorboard=False) as writer:
    for step in range(20):
      writer.write(
        step,
        {
          "reward/mean": step / 20, "reward/code": step / 20, "reward/arithmetic": step / 20,
          "policy/kl": math.nan if step == 7 else 0.01 * step, "policy/entropy": 1.0,
          "length/mean": 50.0, "length/min": 5.0, "length/max": 90.0, "optim/grad_norm": 0.5,
          "perf/time_rollout": 4.0, "perf/time_score": 1.0, "perf/time_train": 3.0,
          "perf/time_total": 9.0, "perf/rollout_tokens_per_s": 1200.0,
          "perf/train_tokens_per_s": 3400.0, "groups/zero_std_frac": 0.25,
        },
      )  # fmt: skip
  write_lines(
    tmp_path / "eval.jsonl",
    [
      evaluation("before", 0, "code", 1, 10),
      evaluation("before", 0, "arithmetic", 3, 30),
      evaluation("after", 20, "code", 8, 10),
      evaluation("after", 20, "arithmetic", 24, 30),
    ],
  )
  write_lines(
    tmp_path / "trajectories.jsonl",
    [
      trajectory("before", "code", "Write f.", HOSTILE, 0.0),
      trajectory("before", "code", "Write g.", "no", 0.0),
      trajectory("train", "code", "Write h.", "while training", 0.5, finish_reason="length"),
      trajectory("after", "code", "Write g.", "def g(): ...", 1.0),
      trajectory("after", "arithmetic", "1+1?", "2", None, outcome="infra_failed", rewards={}),
    ],
  )
  config = {"rl": {"kl_coef": 0.01, "note": "<b>"}, "seed": 3}
  (tmp_path / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("finished")
  write_run(workdir)
  return workdir


@pytest.fixture(scope="module")
def page(finished):
  return page_of(finished)


def page_of(workdir):
  return write_report(workdir).read_text(encoding="utf-8")


def text_of(page):
  """What a reader sees, without figures and tags."""
  body = re.sub(r"<(svg|style)\b.*?</\1>", " ", page, flags=re.S)
  return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_pass_rates_with_intervals(page):
  text = text_of(page)
  # 4 of 40 and 32 of 40; code: 8 of 10, whose interval is the golden (0.4902, 0.9433).
  assert "10.0% → 80.0%" in text
  assert "4 of 40 and 32 of 40" in text
  assert "they do not overlap" in text
  assert re.search(r"code 10\.0% 1\.8 to 40\.4 10 80\.0% 49\.0 to 94\.3 10", text)
  assert "all together 10.0%" in text


def test_overlapping_intervals_are_called_so(tmp_path):
  write_lines(
    tmp_path / "eval.jsonl",
    [evaluation("before", 0, "a", 4, 10), evaluation("after", 9, "a", 5, 10)],
  )
  text = text_of(page_of(tmp_path))
  assert "they overlap" in text
  assert "all together" not in text  # a single domain is its own total


def test_facts_and_configuration(page):
  text = text_of(page)
  for words in ("20 steps on record", "3.0 min in training steps", "rl.kl_coef 0.01", "seed 3"):
    assert words in text
  assert re.search(r"Python 3\.\d+\.\d+.*jax \d+\.\d+", text)


def test_model_output_is_escaped(page):
  assert "<script" not in page
  assert "&lt;script&gt;alert(1)&lt;/script&gt;&lt;/pre&gt;\ufffd\ufffd[31m \ufffd &amp;" in page
  assert '"&lt;b&gt;"' in html.unescape(page).replace("<b>", "&lt;b&gt;")
  assert "default-src 'none'" in page


def test_domain_names_are_escaped_in_figures(tmp_path):
  write_lines(tmp_path / "eval.jsonl", [evaluation("before", 0, "<script>x", 1, 4)])
  assert "<script" not in page_of(tmp_path)


def test_page_is_self_contained(page):
  assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
  assert "@import" not in page
  assert "url(http" not in page


def test_figures_are_well_formed_with_unique_ids(page):
  figures_found = re.findall(r"<svg\b.*?</svg>", page, re.S)
  assert len(figures_found) == 9  # held out, six of training, two of speed
  for svg in figures_found:
    ET.fromstring(svg)
  ids = re.findall(r'\bid="([^"]+)"', page)
  assert len(ids) == len(set(ids))
  targets = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
  assert targets <= set(ids)
  assert figures.INK not in "".join(figures_found)  # colours are variables of the theme


def test_axes_carry_units(page):
  units = ("held-out tasks passed, %", "seconds a step", "tokens/s", "nats a token", ">step<")
  assert all(unit in page for unit in units)


def test_same_files_same_page(finished, page):
  assert page_of(finished) == page


def test_samples_pair_the_same_task(finished, page):
  pairs = paired(load_run(finished), "code")
  assert [(before["prompt"], after and after["response"]) for before, after in pairs] == [
    ("Write g.", "def g(): ..."),
    ("Write f.", None),
  ]
  text = text_of(page)
  assert "Before failed reward 0.00 no tests 0.00 After passed reward 1.00 def g(): ..." in text
  assert "After infra failed no reward 2" in text
  assert "During training failed reward 0.50 cut at the length limit while training" in text


def test_killed_run_says_that_it_has_no_after(tmp_path):
  write_run(tmp_path)
  write_lines(tmp_path / "eval.jsonl", [evaluation("before", 0, "code", 1, 10)])
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-30])  # the last line torn
  text = text_of(page_of(tmp_path))
  assert "10.0% → not yet" in text
  assert "still going, or it was stopped (last step on record: 18)" in text
  assert "19 steps on record" in text


def test_domain_measured_on_one_side_only(tmp_path):
  write_lines(
    tmp_path / "eval.jsonl",
    [
      evaluation("before", 0, "code", 1, 10),
      evaluation("before", 0, "logic", 0, 0),  # its grader was down: no rate
      evaluation("after", 9, "code", 1, 10),
      evaluation("after", 9, "logic", 2, 10),
    ],
  )
  text = text_of(page_of(tmp_path))
  assert "Measured on one side only, so the totals do not compare: logic." in text
  assert "logic n/a n/a n/a 20.0%" in text


def test_of_many_domains_the_lowest_are_shown(tmp_path):
  rates = [evaluation("after", 1, f"domain{i:03}", i, 100) for i in range(1, 100)]
  write_lines(tmp_path / "eval.jsonl", rates)
  text = text_of(page_of(tmp_path))
  assert "The 20 lowest of 99 domains are shown." in text
  assert "all together n/a n/a n/a 50.0%" in text
  assert "domain020" in text
  assert "domain021" not in text


def test_empty_directory(tmp_path):
  text = text_of(page_of(tmp_path))
  for name in ("metrics.jsonl", "eval.jsonl", "trajectories.jsonl", "config.json"):
    assert f"{name} is not in the working directory." in text
  assert "policy/kl: not recorded." in text
  assert "No held-out evaluation was recorded." in text


def test_errors_name_the_file(tmp_path):
  with pytest.raises(ValueError, match="absent is not a directory"):
    write_report(tmp_path / "absent")
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json"):
    write_report(tmp_path)


@pytest.mark.parametrize("recorded", [True, False])
def test_picture(recorded, finished, tmp_path):
  path = write_picture(finished if recorded else tmp_path, tmp_path / "run.png")
  data = path.read_bytes()
  assert data[:8] == b"\x89PNG\r\n\x1a\n"
  assert [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)] == [2400, 840]


def test_smooth_keeps_gaps():
  # Windows of five: (1+2)/2, (1+2+4)/3, gap, (2+4+6)/3, (4+6)/2; the null value counts nowhere.
  got = figures.smooth([1.0, 2.0, math.nan, 4.0, 6.0])
  assert got == pytest.approx([1.5, 7 / 3, math.nan, 4.0, 5.0], nan_ok=True)


def test_markup_escapes_what_is_not_markup():
  assert el("p", "<i>", Markup("<b>x</b>"), title='"') == (
    '<p title="&quot;">&lt;i&gt;<b>x</b></p>'
  )
  with pytest.raises(TypeError, match="wrap text"):
    join("<i>")


def test_flatten():
  tree = {"a": {"b": 1, "c": {"d": None}}, "e": [1, 2], "f": {}}
  assert list(flatten(tree)) == [("a.b", "1"), ("a.c.d", "null"), ("e", "[1, 2]"), ("f", "{}")]
