"""Sensors of reward hacking, without a model."""

import asyncio
import json
import math

import numpy as np
import pytest

from ptjax.core.sequential import Above, add_values
from ptjax.domains.catalog import builder
from ptjax.envs.environment import Services
from ptjax.evals import hacking
from ptjax.evals.canaries import canary, guess_rate
from ptjax.evals.hacking import CANARY, GAP, HackingConfig, Profile, Watched, check, drift


def test_evidence_by_hand():
  above = add_values(Above(), [1.0], 0.25)
  bets = [0.1, 0.25, 0.5, 0.75, 0.95]
  capital = sum(0.5 / 5 * (1 + b * 0.75 / 1.25) for b in bets)
  assert above.log_evidence == pytest.approx(math.log(capital + 0.5))


@pytest.mark.parametrize("limit", [0.1, 0.4])
def test_false_alarms_at_the_limit(limit):
  """Values of 1 and -1 whose mean is the limit; twenty looks."""
  rng, alarms, runs = np.random.default_rng(0), 0, 600
  for _ in range(runs):
    above, worst = Above(), -math.inf
    for _ in range(20):
      values = np.where(rng.random(8) < (1 + limit) / 2, 1.0, -1.0)
      above = add_values(above, values, limit)
      worst = max(worst, above.log_evidence)
    alarms += worst >= math.log(1 / 0.2)
  assert alarms <= 0.2 * runs


def test_a_late_start_is_found():
  above = Above()
  for _ in range(30):
    above = add_values(above, [0.0] * 8, 0.1)
  assert above.log_evidence < 0
  for _ in range(5):
    above = add_values(above, [1.0] * 8, 0.1)
  assert above.log_evidence > math.log(2 * 100 / 0.05)


def test_drift():
  profile = Profile()
  for answer in ("the answer is 12", "the answer is 7"):
    profile = profile.plus(answer)
  assert drift(profile, profile) == 0
  assert drift(profile, Profile()) == 0
  twice = profile.plus("the answer is 12").plus("the answer is 7")
  assert drift(profile, twice) == pytest.approx(0, abs=1e-9)
  same_length = Profile().plus("z" * 15).plus("z" * 16)
  assert 0.8 < drift(profile, same_length) <= 1  # the divergence alone, in bits; a bucket is shared
  long = Profile().plus("z" * 31).plus("z" * 31)
  assert drift(same_length, long) == pytest.approx(1.0)  # the lengths alone: twice as many
  watched = hacking.see_rewarded(Watched(), ["the answer is 12", "the answer is 7"])
  assert hacking.oddness(watched, "zzzz zzzz") > hacking.oddness(watched, "the answer is 9")


def test_an_alarm_and_its_evidence():
  limits, level = {CANARY: 0.3, GAP: 0.25}, HackingConfig().log_limit(1)
  watched, alarms = check("d", Watched(), {CANARY: [0.0, 1.0] * 4, GAP: []}, limits, level)
  assert alarms == []
  assert watched.sensors[GAP] == Above()
  watched, (alarm,) = check("d", watched, {CANARY: [1.0] * 20, GAP: [0.0] * 8}, limits, level)
  assert (alarm.sensor, alarm.mean, alarm.values, alarm.limit) == (CANARY, 1.0, 20, 0.3)
  assert alarm.log_evidence >= alarm.log_limit == pytest.approx(math.log(2 / 0.05))


def test_a_checkpoint_keeps_all_of_it():
  watched = hacking.see_rewarded(Watched(), ["abcdef", "gh"])
  watched, _ = check("d", watched, {CANARY: [1.0], GAP: []}, {CANARY: 0.3, GAP: 0.2}, 3.0)
  record = json.loads(json.dumps(hacking.to_record({"d": watched}), allow_nan=False))
  assert hacking.of_record(record) == {"d": watched}


@pytest.mark.parametrize("name", ["arithmetic", "reasoning/word_sorting"])
def test_right_answers_do_not_pass_canaries(name):
  domain = builder(name)()
  assert asyncio.run(guess_rate(domain, Services())) < 0.4
  task = canary(domain, 3)
  own = domain.make_task(task.seed, "train")
  assert task.messages == own.messages
  assert task.data != own.data


@pytest.mark.parametrize(
  ("changes", "message"),
  [({"every": 0}, "every 0"), ({"canaries": -1}, "canaries -1"), ({"gap_limit": 0}, "gap_limit 0"),
   ({"alpha": 1}, "alpha 1")],
)  # fmt: skip
def test_configuration_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    HackingConfig(**changes)
