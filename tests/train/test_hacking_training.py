"""A gameable grader in the real loop: it is found and stopped; the honest domain trains on."""

import pytest

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import read_jsonl, without_perf
from ptjax.data.annotated_pairs import read_pairs
from ptjax.data.reviews import add_verdict, read_queue, write_preferences
from ptjax.evals.hacking import HackingConfig
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, ModelConfig, RLConfig
from ptjax.train.hack_watch import RewardHackedError
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.run import Observer, run

pytestmark = pytest.mark.slow


def gamed(source, names=("gameable", "exact"), **changes) -> Experiment:
  hacking = HackingConfig(**{"every": 2, "canaries": 16} | changes)
  return Experiment(
    name="gamed",
    domains=tuple(DomainConfig(name, module="gameable_domains") for name in names),
    model=ModelConfig(str(source)),
    policy=PolicyConfig(max_new_tokens=6),
    engine=EngineConfig(num_slots=32, max_length=64, decode_chunk=6),
    pack=PackConfig(length=128, actions=64, rows=8),
    rl=RLConfig(num_steps=8, prompts_per_step=8, group_size=8, hacking=hacking, deterministic=True),
    optimizer=OptimizerConfig(learning_rate=1e-2),
    eval=EvalConfig(tasks_per_domain=0),
    checkpoint=CheckpointConfig(every=3),
  )


@pytest.fixture(scope="module")
def workdir(tiny_source, tmp_path_factory):
  path = tmp_path_factory.mktemp("gamed")
  run(gamed(tiny_source), path)
  return path


def test_a_gameable_grader_is_quarantined(workdir):
  (decision,) = read_jsonl(workdir / "decisions.jsonl")
  assert (decision["kind"], decision["domain"]) == ("quarantine", "gameable")
  evidence = decision["evidence"]
  assert evidence["sensor"] == "canary"
  assert evidence["mean"] > evidence["limit"]
  assert evidence["log_evidence"] >= evidence["log_limit"]
  late = [r for r in read_jsonl(workdir / "metrics.jsonl") if r["step"] > decision["step"]]
  assert late
  assert not any("pass/gameable" in r for r in late)
  assert all("pass/exact" in r for r in late)


def test_a_second_grader_finds_it_too(tiny_source, tmp_path):
  run(gamed(tiny_source, ("audited", "exact"), canaries=0), tmp_path)
  decisions = read_jsonl(tmp_path / "decisions.jsonl")
  assert [(d["kind"], d["domain"], d["evidence"]["sensor"]) for d in decisions] == [
    ("quarantine", "audited", "gap")
  ]


def test_it_ends_the_run(tiny_source, tmp_path):
  with pytest.raises(RewardHackedError, match="reward of gameable is gamed: canary"):
    run(gamed(tiny_source, then="stop"), tmp_path)
  (decision,) = read_jsonl(tmp_path / "decisions.jsonl")
  assert decision["kind"] == "stop"


def test_a_killed_run_finds_the_same(workdir, tiny_source, tmp_path):
  class Crash(Exception):
    pass

  def on_step(step, record):
    if step == 4:
      raise Crash

  with pytest.raises(Crash):
    run(gamed(tiny_source), tmp_path, Observer(lambda _: None, on_step, lambda *_: None))
  run(gamed(tiny_source), tmp_path)
  for name in ("decisions.jsonl", "hacking.jsonl", "review.jsonl"):
    assert read_jsonl(tmp_path / name) == read_jsonl(workdir / name)
  whole, broken = (
    [without_perf(r) for r in read_jsonl(w / "metrics.jsonl")] for w in (workdir, tmp_path)
  )
  assert broken == whole


def test_verdicts_become_preferences(workdir, tmp_path):
  queue = read_queue(workdir)
  assert {record["why"] for record in queue} == {"random", "suspicious"}
  for record in queue[:3]:
    add_verdict(workdir, record["id"], good=record is queue[0], annotator="a17")
  assert write_preferences(workdir, tmp_path / "pairs.jsonl") >= 2
  pairs = read_pairs(tmp_path / "pairs.jsonl", unpaired=True)
  assert {pair.annotator for pair in pairs} == {"a17"}
  assert {pair.license for pair in pairs} == {"CC-BY-4.0"}
