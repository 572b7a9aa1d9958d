"""Domains added, removed and re-versioned when a run is resumed."""

import dataclasses

import pytest
from train_toys import toy_domain, toy_experiment

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import read_jsonl
from ptjax.domains.catalog import DOMAINS
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.rewards.judge import JudgeConfig
from ptjax.rewards.reward_model import DIRECTORY
from ptjax.train.domain_changes import changes, version, without_seen
from ptjax.train.experiment import RLConfig
from ptjax.train.run import run


def named(name, version=1):
  def make_task(seed, split):
    return dataclasses.replace(toy_domain().make_task(seed, split), domain=name)

  return lambda: dataclasses.replace(toy_domain(), name=name, version=version, make_task=make_task)


def experiment(source, steps, **weights):
  rl = RLConfig(num_steps=steps, prompts_per_step=4, group_size=4)
  return toy_experiment(
    source,
    domains=tuple(DomainConfig(name, weight) for name, weight in weights.items()),
    rl=rl,
    eval=EvalConfig(tasks_per_domain=0),
    checkpoint=CheckpointConfig(every=1),
  )


def drawn(workdir):
  return [set(r["domains"]) for r in read_jsonl(workdir / "costs.jsonl")]


def test_a_run_goes_on_under_other_domains(tiny_source, tmp_path, monkeypatch):
  for name in "abc":
    monkeypatch.setitem(DOMAINS, name, named(name))
  run(experiment(tiny_source, 2, a=1.0, b=1.0), tmp_path)
  monkeypatch.setitem(DOMAINS, "a", named("a", version=2))
  for _ in range(2):  # a second resume says nothing twice
    run(experiment(tiny_source, 4, a=3.0, c=1.0), tmp_path)
  decisions = read_jsonl(tmp_path / "decisions.jsonl")
  assert [(d["step"], d["kind"], d["domain"]) for d in decisions] == [
    (1, "reversioned", "a"),
    (1, "reweighted", "a"),
    (1, "removed", "b"),
    (1, "added", "c"),
  ]
  assert decisions[0]["evidence"] == {"version": "2.1", "version_before": "1.1"}
  assert drawn(tmp_path) == [{"a", "b"}, {"a", "b"}, {"a", "c"}, {"a", "c"}]


def test_another_judge_is_another_version(tmp_path):
  def judged(weights: bytes, **settings):
    directory = tmp_path / "judge" / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(weights)
    config = DomainConfig("toy", judge=JudgeConfig(str(tmp_path / "judge"), **settings))
    return version(toy_domain(), config)

  plain, first = version(toy_domain(), DomainConfig("toy")), judged(b"one")
  assert first.startswith(f"{plain}+judge.")
  assert judged(b"one") == first
  assert len({plain, first, judged(b"two"), judged(b"one", weight=0.5)}) == 4
  then, now = ({"toy": {"version": v, "weight": 1.0}} for v in (first, judged(b"two")))
  ((kind, evidence),) = ((c.kind, c.evidence) for c in changes(then, now))
  assert kind == "reversioned"
  assert evidence == {"version": judged(b"two"), "version_before": first}


def test_nothing_changes():
  then = {"a": {"version": 1, "weight": 1.0}}
  assert changes(then, then) == []


def test_a_new_version_is_a_stranger():
  meta = {
    "mixture": {"drawn": {"a": 5}, "seen": {"a": 1, "b": 2}, "factor": {"a": 0.0, "b": 1.0}},
    "guard": {"floors": {"a": 0.2}, "watches": {"a": 1}, "drawn": {"a": 3, "b": 1}, "rates": {}},
    "watched": {"a": 1, "b": 2},
  }
  left = without_seen(meta, {"a"})
  assert left["mixture"] == {"drawn": {"a": 5}, "seen": {"b": 2}, "factor": {"b": 1.0}}
  assert left["guard"] == {"floors": {}, "watches": {}, "drawn": {"b": 1}, "rates": {}}
  assert left["watched"] == {"b": 2}
  assert without_seen(meta, set()) == meta


@pytest.mark.parametrize("part", ["guard", "watched"])
def test_runs_without_sensors_have_none(part):
  meta = {"mixture": {}, "guard": None, "watched": None}
  assert without_seen(meta, {"a"})[part] is None
