"""What a step costs, counted by hand on a tiny model; and in the real loop."""

import dataclasses

import pytest
from tiny_model import CONFIG
from train_toys import toy_experiment, toy_trajectory

from ptjax.core.metrics import read_jsonl
from ptjax.models import flops
from ptjax.train import costs
from ptjax.train.experiment import CostConfig, RLConfig
from ptjax.train.run import run

WEIGHTS = flops.block_weights(CONFIG)


def test_a_prompt_counts_once_a_group():
  group = [toy_trajectory(range(10), range(n), 0, 1.0) for n in (4, 6)]
  other = toy_trajectory(range(10), range(4), 1, 1.0)
  found = costs.of_passes([*group, other], CONFIG, 1.0, 2.0, 4)
  assert found["toy"].tokens == 10 + 4 + 6 + 10 + 4
  logits = flops.logits(CONFIG, 4 + 6 + 4)
  seen = [(10, 5), (4, 12), (6, 13), (10, 5), (4, 12)]
  attention = sum(flops.attention(CONFIG, *pair) for pair in seen)
  assert found["toy"].flops == pytest.approx(2 * 34 * WEIGHTS + logits + attention)
  assert found["toy"].device_s == 8.0


def test_seconds_follow_the_operations():
  spent = {"a": costs.Cost(flops=3.0), "b": costs.Cost(flops=1.0)}
  split = costs.split_seconds(spent, 2.0, 4)
  assert (split["a"].device_s, split["b"].device_s) == (6.0, 2.0)


def test_passes_that_score(tiny_source):
  rl = RLConfig(reference=True, kl_episodes=2, group_size=8, contract_every=10)
  e = dataclasses.replace(toy_experiment(tiny_source), rl=rl)
  assert costs.scoring_passes(e, CONFIG, 0) == 1.25
  assert costs.scoring_passes(e, CONFIG, 1) == 0.25


def test_a_run_accounts_every_step(tiny_source, tmp_path, toy_in_catalog):
  rl = RLConfig(num_steps=2, prompts_per_step=2, group_size=8)
  domains = (dataclasses.replace(toy_experiment(tiny_source).domains[0], name="toy"),)
  e = dataclasses.replace(toy_experiment(tiny_source), rl=rl, domains=domains)
  run(e, tmp_path)
  records = read_jsonl(tmp_path / "costs.jsonl")
  assert [r["step"] for r in records] == [0, 1]
  metrics = read_jsonl(tmp_path / "metrics.jsonl")
  for record, metric in zip(records, metrics, strict=True):
    spent = record["domains"]["toy"]
    assert spent["scored"] == 16
    rollout = spent["phases"]["rollout"]
    assert rollout["tokens"] == pytest.approx(16 * metric["length/mean"])
    assert rollout["device_s"] >= metric["perf/time_rollout"]
    assert rollout["sandbox_s"] == 0
    assert spent["phases"]["train"]["flops"] > 0


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan")])
def test_a_wrong_price(price):
  with pytest.raises(ValueError, match=f"usd_per_device_hour {price}"):
    CostConfig(usd_per_device_hour=price)
