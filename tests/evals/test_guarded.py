"""The guard of a run: floors from the start, suspects, what a checkpoint keeps."""

import json

import pytest

from ptjax.core.stats import wilson_interval
from ptjax.evals import guarded
from ptjax.evals.guard import GuardSchedule, Kind
from ptjax.experience.mixture import DomainConfig, Mixture

SCHEDULE = GuardSchedule(every=1, tasks=50, keep=0.8)
BAD = {"a": (0, 50), "b": (40, 50)}
GOOD = {"a": (30, 50), "b": (40, 50)}


def mixture(names="abc"):
  return Mixture([DomainConfig(name) for name in names])


def test_floors():
  floors = SCHEDULE.floors(
    {"a": None, "b": None, "c": 0.01, "d": None}, {"a": (30, 50), "b": (1, 50), "c": (0, 50)}
  )
  assert floors == {"a": 0.8 * wilson_interval(30, 50)[0], "c": 0.01}


def test_the_domain_that_rises_is_suspected():
  source = mixture()
  guard = guarded.begin({"a": 0.5}, 0, source)
  source.draw(9)
  source.observe({"a": (0, 8), "b": (4, 8), "c": (4, 8)})
  guard, _ = guarded.evaluate(guard, SCHEDULE, 1, {"a": (40, 50)}, source)
  assert guard.state.good_step == 1
  source.draw(9)
  source.observe({"b": (4, 8), "c": (8, 8)})
  found = guarded.suspicion(guard, source)
  assert found["b"] == pytest.approx(0.01 / 3)
  fast = 0.7 * 4 + 8
  assert found["c"] == pytest.approx((0.01 + fast / (0.7 * 8 + 8) - 0.5) / 3)


def test_a_paused_domain_is_no_suspect_and_the_last_one_is_never_paused():
  source = mixture("ab")
  guard = guarded.begin({"a": 0.5}, 0, source)
  source.draw(4)
  assert guarded.suspicion(guard, source).keys() == {"a", "b"}
  source.scale("b", 0.0)
  assert guarded.suspicion(guard, source) == {}
  kinds = []
  for step in range(1, 4):
    guard, actions = guarded.evaluate(guard, SCHEDULE, step, {"a": (0, 50)}, source)
    kinds += [action.kind for action in actions]
  assert kinds[1] is Kind.ROLL_BACK


def test_a_checkpoint_keeps_all_of_it():
  source = mixture()
  guard = guarded.begin({"a": 0.5, "b": 0.4}, 0, source)
  source.draw(6)
  source.observe({"a": (1, 8)})
  for step, counts in enumerate([GOOD, BAD, BAD, GOOD], start=1):
    guard, _ = guarded.evaluate(guard, SCHEDULE, step, counts, source)
  assert guard.state.paused
  record = json.loads(json.dumps(guard.to_record()))
  assert guarded.Guarded.of_record(record) == guard


def test_other_domains_on_resume():
  guard = guarded.begin({"a": 0.5, "b": 0.4}, 0, mixture())
  guard, _ = guarded.evaluate(guard, SCHEDULE, 1, BAD, mixture())
  new = guarded.with_domains(guard, {"d": 0.3}, {"a": None, "b": 0.6, "d": None}, mixture("abd"))
  assert new.floors == {"a": 0.5, "b": 0.6, "d": 0.3}
  assert new.state.watches["a"].alarms == 1
  assert new.state.watches["b"].history == new.state.watches["d"].history == ()
  assert new.drawn.keys() == {"a", "b", "d"}


@pytest.mark.parametrize(
  ("changes", "message"),
  [({"every": 0}, "every 0"), ({"keep": 1.5}, "keep 1.5"), ({"alpha": 1.0}, "alpha 1.0"),
   ({"boost": 1.0}, "boost 1.0")],
)  # fmt: skip
def test_schedule_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    GuardSchedule(**changes)


def test_a_paused_domain_that_falls_harms_nobody():
  source = mixture()
  guard = guarded.begin({"a": 0.5, "b": 0.4}, 0, source)
  source.draw(3)
  source.scale("a", 0.0)
  for step in (1, 2):
    guard, actions = guarded.evaluate(guard, SCHEDULE, step, BAD, source)
    assert actions == []
  assert guard.state.good_step == 2
  assert guard.state.watches["a"].history == ()
