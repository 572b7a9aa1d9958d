"""Reductions against golden vectors and hand-computed values; the writer against kills."""

import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.core import metrics
from ptjax.core.metrics import Histogram, Max, Mean, MetricsWriter, Min, Std

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())
MEANS = [case for case in GOLDEN["cases"] if case["op"] == "mean"]
ON_HOST_AND_DEVICE = pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["np", "jnp"])


def nums(values):
  return [float(value) for value in values]


def test_every_golden_op_is_tested():
  ops = {case["op"] for case in GOLDEN["cases"]}
  assert ops == {"mean", "pass_at_k", "quantile", "wilson"}  # the last three: test_stats.py


@ON_HOST_AND_DEVICE
@pytest.mark.parametrize("case", MEANS, ids=[case["id"] for case in MEANS])
def test_mean_golden(case, array):
  inputs = case["inputs"]
  if "parts" in inputs:
    parts = [Mean(array(part["sum"]), array(part["count"])) for part in inputs["parts"]]
  else:
    parts = [
      Mean.of(array(nums(shard["values"])), array(shard["mask"])) for shard in inputs["shards"]
    ]
  got = metrics.summarize(metrics.merge(*({"x": part} for part in parts)))["x"]
  tolerance = {"rel": 1e-9, "abs": 1e-11} if array is np.asarray else {"rel": 2e-5, "abs": 2e-6}
  assert got == pytest.approx(float(case["expected"]["mean"]), **tolerance, nan_ok=True)


# Shards of unequal size, one of them empty, masked places holding nan and inf. The values that
# count are 1, 2, 4, 9: mean 4, squared deviations 9 + 4 + 0 + 25 = 38, variance 38/3.
SHARDS = [
  ([1.0, math.nan, 2.0], [1, 0, 1]),
  ([math.inf, -math.inf], [0, 0]),
  ([4.0, 9.0, 100.0], [1, 1, 0]),
]
EXPECTED = {
  "mean": 4.0,
  "std": math.sqrt(38 / 3),
  "max": 9.0,
  "min": 1.0,
  "hist/0.00-2.00": 0.25,  # [0, 2): 1
  "hist/2.00-9.00": 0.75,  # [2, 9]: 2, 4 and 9, the last edge being closed
}


def reduce_all(values, mask):
  return {
    "mean": Mean.of(values, mask),
    "std": Std.of(values, mask),
    "max": Max.of(values, mask),
    "min": Min.of(values, mask),
    "hist": Histogram.of(values, (0.0, 2.0, 9.0), mask),
  }


@pytest.mark.parametrize("reduce", [reduce_all, jax.jit(reduce_all)], ids=["host", "jit"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_reductions_do_not_depend_on_the_split(reduce, order):
  parts = [reduce(np.asarray(SHARDS[i][0]), np.asarray(SHARDS[i][1])) for i in order]
  assert metrics.summarize(metrics.merge(*parts)) == pytest.approx(EXPECTED)


def test_merge_inside_jit():
  parts = [(jnp.asarray(values), jnp.asarray(mask)) for values, mask in SHARDS]
  merged = jax.jit(lambda ps: metrics.merge(*(reduce_all(*p) for p in ps)))(parts)
  assert metrics.summarize(merged) == pytest.approx(EXPECTED)


def test_scan_carries_a_reduction():
  x_BT = jnp.asarray([[1.0, 2.0], [3.0, 6.0]])
  start = Std.of(jnp.zeros(2), jnp.zeros(2))
  total, _ = jax.lax.scan(lambda std, x_T: (std.merge(Std.of(x_T)), None), start, x_BT)
  assert float(total.compute()) == pytest.approx(math.sqrt(14 / 3))  # mean 3: 4 + 1 + 0 + 9


def test_nothing_counted_is_nan():
  got = metrics.summarize(reduce_all(np.ones(3), np.zeros(3)))
  assert len(got) == 6
  assert all(math.isnan(value) for value in got.values())
  assert math.isnan(float(Std.of(np.ones(1)).compute()))


def test_nan_that_counts_is_not_hidden():
  got = metrics.summarize(reduce_all(np.asarray([1.0, math.nan]), np.ones(2)))
  assert all(math.isnan(got[name]) for name in ("mean", "std", "max", "min"))


def test_std_in_float32_of_a_large_offset():
  # sum(x²) - n·mean² in float32 would lose every digit: ulp of 1e8² is about 1e9.
  x = jnp.asarray([1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3], jnp.float32)
  std = Std.of(x[:2]).merge(Std.of(x[2:]))
  assert float(std.compute()) == pytest.approx(math.sqrt(5 / 3), rel=1e-5)


def test_counts_are_exact_beyond_float32():
  big = Mean(jnp.float32(0), jnp.int32(2**24)).merge(Mean(jnp.float32(0), jnp.int32(1)))
  assert int(big.count) == 2**24 + 1


def test_merge_keeps_names_that_only_one_part_has():
  merged = metrics.merge({"reward/a": Mean(2.0, 4)}, {"reward/b": Mean(3.0, 4)})
  assert metrics.summarize(merged) == {"reward/a": 0.5, "reward/b": 0.75}


def test_histogram_rejects_edges():
  with pytest.raises(ValueError, match="rising edges"):
    Histogram.of(np.ones(2), (0.0, 0.0))
  with pytest.raises(ValueError, match="cannot merge"):
    Histogram.of(np.ones(2), (0.0, 1.0)).merge(Histogram.of(np.ones(2), (0.0, 2.0)))


def test_record_is_one_sorted_json_line(tmp_path):
  with MetricsWriter(tmp_path, tensorboard=False) as writer:
    record = writer.write(0, {"reward/mean": Mean(3.0, 4), "optim/lr": 1e-6, "a": math.inf})
    # Flushed: readable while the writer is open.
    line = (tmp_path / "metrics.jsonl").read_text()
  assert line == '{"a": null, "optim/lr": 1e-06, "reward/mean": 0.75, "step": 0}\n'
  assert record == json.loads(line)


def test_float32_scalars_survive_the_file(tmp_path):
  value = np.float32(0.1)
  with MetricsWriter(tmp_path, tensorboard=False) as writer:
    writer.write(0, {"x": jnp.asarray(value)})
  assert np.float32(metrics.read_jsonl(tmp_path / "metrics.jsonl")[0]["x"]) == value


def test_steps_rise_and_names_are_free_of_step(tmp_path):
  with MetricsWriter(tmp_path, tensorboard=False) as writer:
    writer.write(3, {})
    with pytest.raises(ValueError, match="step 3 after step 3"):
      writer.write(3, {})
    with pytest.raises(ValueError, match="cannot be called"):
      writer.write(4, {"step": 1.0})


def write_steps(workdir, steps, **kwargs):
  with MetricsWriter(workdir, tensorboard=False, **kwargs) as writer:
    for step in steps:
      writer.write(step, {"reward/mean": step / 8, "perf/time_total": 1.0 + step})


def test_resume_drops_what_happens_again(tmp_path):
  write_steps(tmp_path / "killed", range(5))
  path = tmp_path / "killed" / "metrics.jsonl"
  path.write_bytes(path.read_bytes() + b'{"reward/mean": 0.7, "st')  # torn by a kill
  write_steps(tmp_path / "killed", range(3, 6), resume_step=3)
  write_steps(tmp_path / "whole", range(6))
  assert path.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
  assert not list(tmp_path.glob("*/*.tmp"))


def test_resume_without_a_file_starts_one(tmp_path):
  write_steps(tmp_path, [7], resume_step=7)
  assert [record["step"] for record in metrics.read_jsonl(tmp_path / "metrics.jsonl")] == [7]


def test_torn_character_and_missing_newline(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_bytes(b'{"step": 0}\n{"step": 1, "text": "\xe2\x82')
  assert metrics.read_jsonl(path) == [{"step": 0}]
  path.write_bytes(b'{"step": 0}\n{"step": 1}')  # whole but for its newline: kept, and repaired
  assert metrics.drop_from_step(path, 2) == [{"step": 0}, {"step": 1}]
  assert path.read_bytes() == b'{"step": 0}\n{"step": 1}\n'


@pytest.mark.parametrize("line", [b'{"step": ', b"[1]", b"3"])
def test_damage_before_the_end_is_an_error(tmp_path, line):
  path = tmp_path / "x.jsonl"
  path.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
  with pytest.raises(ValueError, match="line 2"):
    metrics.read_jsonl(path)


def test_text_is_split_on_newlines_only(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text('{"step": 0, "text": "a\u2028b\u0085c"}\n', encoding="utf-8")
  assert metrics.read_jsonl(path) == [{"step": 0, "text": "a\u2028b\u0085c"}]


def test_new_run_does_not_append_to_an_old_one(tmp_path):
  write_steps(tmp_path, [0])
  with pytest.raises(ValueError, match="give resume_step or another workdir"):
    MetricsWriter(tmp_path, tensorboard=False)


def test_lines_survive_sigkill(tmp_path):
  program = (
    "import os, signal, sys\n"
    "from ptjax.core.metrics import MetricsWriter\n"
    "writer = MetricsWriter(sys.argv[1], tensorboard=False)\n"
    "[writer.write(step, {'x': step}) for step in range(3)]\n"
    "os.kill(os.getpid(), signal.SIGKILL)\n"
  )
  done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
  assert done.returncode == -signal.SIGKILL
  assert [record["x"] for record in metrics.read_jsonl(tmp_path / "metrics.jsonl")] == [0, 1, 2]


def test_only_perf_may_differ():
  fast = {"step": 1, "reward/mean": 0.5, "perf/time_total": 1.0}
  slow = {"step": 1, "reward/mean": 0.5, "perf/time_total": 9.0}
  assert metrics.without_perf(fast) == metrics.without_perf(slow) == {"step": 1, "reward/mean": 0.5}


def test_clock_names_are_under_perf():
  table = metrics.__doc__.split("=" * 30)[2]
  names = re.findall(r"^  ([a-z]+/\S+)", table, re.M)
  assert len(names) > 25
  of_the_clock = [name for name in names if re.search(r"_per_s|time|mfu|memory", name)]
  assert of_the_clock
  assert all(name.startswith(metrics.PERF_PREFIX) for name in of_the_clock)


def test_tensorboard_events(tmp_path):
  from tensorboardX.proto.event_pb2 import Event

  with MetricsWriter(tmp_path) as writer:
    writer.write(0, {"reward/mean": 0.5, "x": math.nan})
    writer.write(1, {"reward/mean": 0.75})
  with MetricsWriter(tmp_path, resume_step=1) as writer:
    writer.write(1, {"reward/mean": 0.875})
  events = []
  for path in sorted((tmp_path / "tb").iterdir()):
    data, at = path.read_bytes(), 0
    while at < len(data):  # TFRecord: u64 length, u32 crc, payload, u32 crc
      size = int.from_bytes(data[at : at + 8], "little")
      events.append(Event.FromString(data[at + 12 : at + 12 + size]))
      at += 16 + size
  scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
  assert scalars == [
    (0, "reward/mean", 0.5),
    (1, "reward/mean", 0.75),
    (1, "reward/mean", 0.875),
  ]
  # The restart mark at step 1 makes TensorBoard hide the first record of step 1.
  assert [e.step for e in events if e.session_log.status == 1] == [1]
