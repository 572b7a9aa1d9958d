"""The live table: aligned plain lines in a log, missing values, many domains, the ETA."""

import io

import pytest

from ptjax.report.live import HEADER_EVERY, LiveTable, clock, compact

VALUES = {
  "reward/mean": 0.25,
  "reward/code": 0.2,
  "reward/arithmetic": 0.3,
  "policy/kl": 0.0123,
  "policy/entropy": 1.5,
  "length/mean": 96.4,
  "perf/rollout_tokens_per_s": 1234.0,
  "perf/train_tokens_per_s": 45678.0,
  "perf/time_rollout": 4.0,
  "perf/time_score": 0.5,
  "perf/time_train": 3.0,
  "perf/time_total": 10.0,
}


def lines_of(rows, domains=("code", "arithmetic"), total=80, width=None):
  out = io.StringIO()
  table = LiveTable(total, domains, file=out, width=width)
  for step, values in enumerate(rows):
    table.row(step, values)
  return out.getvalue().splitlines()


def test_row_holds_every_number():
  groups, titles, row = lines_of([VALUES])
  assert " ".join(titles.split()) == (
    "step all code arithmetic kl entropy length roll train roll score train step eta"
  )
  assert " ".join(row.split()) == (
    "1/80 0.250 0.200 0.300 0.0123 1.500 96 1.2k 46k 4.0 0.5 3.0 10.0 13:10"
  )  # 79 steps of 10 s remain
  assert [name in groups for name in ("reward", "policy", "tokens/s", "seconds")] == [True] * 4


def test_a_log_is_aligned_ascii_of_at_most_100_columns():
  lines = lines_of([VALUES, VALUES | {"policy/kl": None}, {}], width=100)
  assert all(line.isascii() and len(line) <= 100 for line in lines)
  assert len({len(line) for line in lines[1:]}) == 1
  assert "\x1b" not in "".join(lines)


def test_missing_and_null_values_show_as_a_dash():
  *_, row = lines_of([{"policy/kl": None, "policy/entropy": float("nan")}])
  assert row.split() == ["1/80", *["-"] * 13]


def test_header_comes_back():
  lines = lines_of([VALUES] * (HEADER_EVERY + 1), total=100)
  assert [i for i, line in enumerate(lines) if "entropy" in line] == [1, HEADER_EVERY + 3]


def test_many_domains_fold_into_the_lowest():
  domains = [f"family/{i:03}" for i in range(200)]
  values = VALUES | {f"reward/{name}": 0.5 for name in domains} | {"reward/family/137": 0.125}
  _, titles, row = lines_of([values], domains, width=110)
  assert "lowest domain" in titles
  assert "family/137 0.125" in row
  assert len(row) <= 110


def test_one_domain_is_not_shown_twice():
  _, titles, _ = lines_of([VALUES], ["code"])
  assert "code" not in titles


def test_eta_follows_the_recent_steps():
  rows = [VALUES | {"perf/time_total": seconds} for seconds in (20.0, 10.0)]
  assert lines_of(rows, total=4)[-1].split()[-1] == "0:30"  # two steps of 15 s


@pytest.mark.parametrize(
  ("value", "text"), [(0, "0"), (950, "950"), (1234, "1.2k"), (45678, "46k"), (999700, "1.0M")]
)
def test_compact(value, text):
  assert compact(value) == text


@pytest.mark.parametrize(
  ("seconds", "text"), [(5, "0:05"), (65, "1:05"), (3725, "1:02:05"), (43500, "12h05m")]
)
def test_clock(seconds, text):
  assert clock(seconds) == text
