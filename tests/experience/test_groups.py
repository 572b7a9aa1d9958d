"""Dynamic sampling: whole groups, judged by raw accuracy, in a bounded number of rounds."""

import dataclasses

import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Grade
from ptjax.envs.environment import Episode, Task
from ptjax.experience.collect import EpisodeSpec, Played
from ptjax.experience.groups import DynamicSampling, Reason, drop_reason, sample_groups

EPISODE = Episode(
  tokens=np.zeros(2, np.int32),
  action_mask=np.array([False, True]),
  behavior_logprobs=np.zeros(2, np.float32),
  policy_versions=np.array([-1, 0], np.int32),
  turn_starts=(0, 1),
  responses=("",),
  finish_reason=FinishReason.STOP,
)
TASK = Task("toy", 0, "train", (), {})


def played(group: int, passed: bool, reward: float | None = 0.5) -> Played:
  """None: lost to the infrastructure."""
  if reward is None:
    return Played(EpisodeSpec(TASK, group, 0), EPISODE, Grade(Outcome.INFRA_FAILED, {}))
  grade = Grade(Outcome.SCORED, {"": reward}, passed)
  return Played(EpisodeSpec(TASK, group, 0), EPISODE, grade)


def group_of(number: int, passes: str) -> list[Played]:
  """One episode a letter: p passed, f failed, x lost."""
  return [played(number, c == "p", None if c == "x" else 0.5) for c in passes]


@pytest.mark.parametrize(
  ("passes", "reason"),
  [
    ("pf", None),
    ("ppp", Reason.SOLVED),
    ("ff", Reason.UNSOLVED),
    ("px", Reason.SHORT),
    ("xx", Reason.SHORT),
    ("ppx", Reason.SOLVED),
    ("pfx", None),
  ],
)
def test_reasons(passes, reason):
  assert drop_reason(group_of(0, passes), DynamicSampling()) == reason


def test_raw_accuracy_decides_not_the_shaped_reward_nemo_2478():
  """Rewards that differ in a solved group, and rewards that agree in a mixed one."""
  solved = [played(0, True, 0.1), played(0, True, 0.9)]
  mixed = [played(1, True, 0.5), played(1, False, 0.5)]
  assert drop_reason(solved, DynamicSampling()) is Reason.SOLVED
  assert drop_reason(mixed, DynamicSampling()) is None


def test_a_band_of_accuracies():
  config = DynamicSampling(low=0.25, high=0.75)
  reasons = [drop_reason(group_of(0, p), config) for p in ("pfff", "ppff", "pppf")]
  assert reasons == [Reason.UNSOLVED, None, Reason.SOLVED]


def sampler(rounds: list[list[str]], calls: list):
  def play(number, count, first_group):
    calls.append((number, count, first_group))
    groups = rounds[number]
    assert len(groups) == count, "asked for what is missing, no more"
    return [p for i, g in enumerate(groups) for p in group_of(first_group + i, g)]

  return play


def test_groups_are_filtered_whole_and_refilled_nemo_3469():
  calls = []
  play = sampler([["pf", "pp", "ff"], ["px", "pf"], ["fp"]], calls)
  got = sample_groups(play, 3, DynamicSampling())
  assert calls == [(0, 3, 0), (1, 2, 3), (2, 1, 5)]
  assert [p.spec.group for p in got.kept] == [0, 0, 4, 4, 5, 5]
  assert len(got.played) == 12
  assert got.dropped == {Reason.SOLVED: 1, Reason.UNSOLVED: 1, Reason.SHORT: 1}
  assert (got.rounds, got.missing) == (3, 0)


def test_the_rounds_are_bounded():
  calls = []
  play = sampler([["pf", "pp"], ["pp"], ["pp"]], calls)
  got = sample_groups(play, 2, DynamicSampling(max_rounds=3))
  assert (len(calls), got.missing, len(got.kept)) == (3, 1, 2)


def test_a_kept_group_keeps_its_lost_member():
  """It has no reward and trains nothing, and the record still counts it."""
  got = sample_groups(sampler([["pfx"]], []), 1, DynamicSampling())
  assert [dataclasses.astuple(p.spec)[1] for p in got.kept] == [0, 0, 0]
