"""The regression guard: its ladder, its evidence, and its false alarms by simulation."""

import math

import numpy as np
import pytest

from ptjax.evals import guard
from ptjax.evals.guard import GuardConfig, Kind, review

CONFIG = GuardConfig({"a": 0.5, "b": 0.3})
SUSPICION = {"a": 0.2, "b": 0.3, "harm": 0.5}


def run(config, evaluations, suspicion=None):
  state, actions = guard.start(config), []
  for step, counts in enumerate(evaluations):
    state, more = review(config, state, step, counts, suspicion or SUSPICION)
    actions += more
  return state, actions


def test_the_ladder():
  good, bad = {"a": (40, 50), "b": (25, 50)}, {"a": (3, 50), "b": (25, 50)}
  state, actions = run(CONFIG, [good, good, *[bad] * 4])
  assert [(a.step, a.kind, a.target) for a in actions] == [
    (2, Kind.RAISE, "a"),
    (3, Kind.PAUSE, "harm"),
    (4, Kind.ROLL_BACK, ""),
  ]
  assert [a.to_step for a in actions] == [None, None, 1]
  assert state.paused == {"harm"}
  assert state.watches["a"].alarms == 3
  assert state.watches["b"].alarms == 0


def test_an_action_carries_its_evidence():
  _, (action,) = run(CONFIG, [{"a": (1, 50), "b": (25, 50)}])
  assert action.history == ((1, 50),)
  assert action.log_evidence >= action.limit == pytest.approx(math.log(6 / 0.05))
  assert action.high < action.floor == 0.5


def test_a_pause_finds_nobody_left():
  bad = {"a": (0, 50), "b": (25, 50)}
  _, actions = run(CONFIG, [bad, bad], {"a": 1.0})
  assert [a.kind for a in actions] == [Kind.RAISE, Kind.ROLL_BACK]


def test_what_could_not_be_scored_is_no_evidence_and_not_good():
  state, actions = run(CONFIG, [{"a": (40, 50), "b": (25, 50)}, {"a": (0, 0), "b": (25, 50)}])
  assert actions == []
  assert state.watches["a"].history == ((40, 50),)
  assert state.good_step == 0
  state, _ = run(CONFIG, [{"a": (40, 50), "b": (25, 50)}] * 3)
  assert state.good_step == 2


def test_false_alarms_over_all_domains_of_simulated_runs():
  """At the floor exactly; the ten thousand runs of one test are in tests/core."""
  config = GuardConfig({f"d{i}": 0.4 for i in range(3)}, alpha=0.3)
  rng = np.random.default_rng(0)
  runs, alarmed = 400, 0
  for _ in range(runs):
    passed = rng.binomial(20, 0.4, (10, 3))
    evaluations = [{f"d{i}": (int(s), 20) for i, s in enumerate(row)} for row in passed]
    alarmed += bool(run(config, evaluations)[1])
  assert alarmed <= 0.3 * runs


@pytest.mark.parametrize(
  ("changes", "message"),
  [({"floors": {}}, "are empty"), ({"floors": {"a": 1.0}}, "'a': 1.0"), ({"alpha": 0}, "alpha 0"),
   ({"boost": 1.0}, "boost 1.0")],
)  # fmt: skip
def test_configuration_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    GuardConfig(**{"floors": {"a": 0.5}, **changes})
