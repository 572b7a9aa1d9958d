"""The regression guard in the real loop: a harmful domain is caught with it, and not without."""

import pytest

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import read_jsonl, without_perf
from ptjax.evals.guard import GuardSchedule
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.run import Observer, run

pytestmark = pytest.mark.slow

GUARD = GuardSchedule(every=2, tasks=48)
STEPS = 10


def conflict(source, guard: GuardSchedule | None = GUARD) -> Experiment:
  """A harmful domain of three times the weight of the one that it breaks."""
  domains = (("seven", 1.0), ("digits", 1.0), ("no_seven", 3.0))
  return Experiment(
    name="conflict",
    domains=tuple(DomainConfig(name, w, module="conflict_domains") for name, w in domains),
    model=ModelConfig(str(source)),
    policy=PolicyConfig(max_new_tokens=6),
    engine=EngineConfig(num_slots=32, max_length=64, decode_chunk=6),
    pack=PackConfig(length=128, actions=64, rows=8),
    rl=RLConfig(
      num_steps=STEPS, prompts_per_step=10, group_size=8, guard=guard, deterministic=True
    ),
    optimizer=OptimizerConfig(learning_rate=1e-2),
    eval=EvalConfig(tasks_per_domain=48),
    checkpoint=CheckpointConfig(every=3),
  )


def held_out(workdir, domain: str, when: str) -> float:
  (record,) = (
    r for r in read_jsonl(workdir / "eval.jsonl") if (r["when"], r["domain"]) == (when, domain)
  )
  return record["passed"] / record["total"]


class Crash(Exception):
  pass


def crashing_at(step: int) -> Observer:
  """Ends a run after that step, before its checkpoint."""

  def on_step(done, record):
    if done == step:
      raise Crash

  return Observer(lambda line: None, on_step, lambda when, rates: None)


@pytest.fixture(scope="module")
def runs(tiny_source, tmp_path_factory):
  """Workdirs of the run with the guard and of that without."""
  root = tmp_path_factory.mktemp("guard")
  for name, guard in (("on", GUARD), ("off", None)):
    (root / name).mkdir()
    run(conflict(tiny_source, guard), root / name)
  return root


def test_the_guard_catches_a_harmful_domain(runs):
  decisions = [r for r in read_jsonl(runs / "on" / "decisions.jsonl") if r["kind"] != "floor"]
  assert [(r["kind"], r["domain"], r["evidence"]["target"]) for r in decisions] == [
    ("raise", "seven", "seven"),
    ("pause", "seven", "no_seven"),
    ("roll_back", "seven", ""),
  ]
  assert decisions[2]["evidence"]["to_step"] == 0
  for r in decisions:
    assert r["evidence"]["log_evidence"] >= r["evidence"]["limit"]
    assert r["evidence"]["high"] < r["evidence"]["floor"]
  before = held_out(runs / "on", "seven", "before")
  assert held_out(runs / "on", "seven", "after") > before > 0.1
  assert read_jsonl(runs / "on" / "metrics.jsonl")[-1]["guard/paused"] == 1
  paused = range(decisions[1]["step"] + 1, STEPS)
  late = [r for r in read_jsonl(runs / "on" / "metrics.jsonl") if r["step"] in paused]
  assert late
  assert not any("pass/no_seven" in r for r in late)


def test_without_the_guard_it_breaks_the_other(runs):
  assert held_out(runs / "off", "seven", "after") < 0.05
  assert held_out(runs / "off", "no_seven", "after") > 0.5
  assert not (runs / "off" / "decisions.jsonl").exists()


def test_a_killed_run_decides_the_same(runs, tiny_source, tmp_path):
  """Killed before the roll-back and after it, each time some steps behind its checkpoint."""
  e = conflict(tiny_source)
  for step in (1, 7):
    with pytest.raises(Crash):
      run(e, tmp_path, crashing_at(step))
  run(e, tmp_path)
  for name in ("decisions.jsonl", "eval.jsonl", "trajectories.jsonl"):
    assert read_jsonl(tmp_path / name) == read_jsonl(runs / "on" / name)
  whole, broken = (
    [without_perf(r) for r in read_jsonl(workdir / "metrics.jsonl")]
    for workdir in (runs / "on", tmp_path)
  )
  assert broken == whole
