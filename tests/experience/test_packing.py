"""Packing: every action once, at the state that predicted it; the prompt once a group and row."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.experience.packing import PackConfig, Place, pack

CONFIG = PackConfig(length=16, actions=8, rows=2)


def trajectory(tokens, mask, group=0):
  """One character of `mask` a token: `a` an action, `.` anything else."""
  acted = np.asarray([c == "a" for c in mask])
  return Trajectory(
    tokens=np.asarray(tokens, np.int32),
    action_mask=acted,
    behavior_logprobs=np.zeros(len(tokens), np.float32),
    policy_versions=np.where(acted, 0, -1).astype(np.int32),
    turn_starts=(0,),
    domain="test",
    group=group,
    seed=0,
    rewards={"": 0.0},
    outcome=Outcome.SCORED,
    finish_reason=FinishReason.STOP,
  )


def test_a_group_by_hand():
  """Prompt 1 2, completions 3 4 (two actions) and 5 6 7 (an observation 6 between actions)."""
  packed = pack([trajectory([1, 2, 3, 4], "..aa"), trajectory([1, 2, 5, 6, 7], "..a.a")], CONFIG)
  rows = packed.rows
  pad = lambda values, width: [*values, *[0] * (width - len(values))]  # noqa: E731
  np.testing.assert_array_equal(rows.tokens_BT[0], pad([1, 2, 3, 4, 5, 6, 7], 16))
  np.testing.assert_array_equal(rows.positions_BT[0], pad([0, 1, 2, 3, 2, 3, 4], 16))
  np.testing.assert_array_equal(rows.segment_ids_BT[0], pad([1] * 7, 16))
  np.testing.assert_array_equal(rows.branch_ids_BT[0], pad([0, 0, 1, 1, 2, 2, 2], 16))
  # Each first action is predicted by the last token of the prompt, 7 by the observation.
  np.testing.assert_array_equal(rows.predictor_BA[0], pad([1, 2, 1, 5], 8))
  np.testing.assert_array_equal(rows.target_BA[0], pad([3, 4, 5, 7], 8))
  np.testing.assert_array_equal(rows.sequence_BA[0], pad([0, 0, 1, 1], 8))
  np.testing.assert_array_equal(rows.mask_BA[0], pad([True] * 4, 8))
  assert packed.places == (Place(0, 0, 2), Place(0, 2, 4))
  # The second row fills the micro-batch.
  assert all(not column[1].any() for column in rows if column is not None)


def test_documents_of_a_row_have_segments_of_their_own():
  items = [trajectory([9, 1], ".a", group=7), trajectory([1, 2, 3], "..a", group=4)]
  packed = pack(items, CONFIG)
  # Large groups first; places in the order given.
  np.testing.assert_array_equal(packed.rows.tokens_BT[0, :5], [1, 2, 3, 9, 1])
  np.testing.assert_array_equal(packed.rows.segment_ids_BT[0, :6], [1, 1, 1, 2, 2, 0])
  np.testing.assert_array_equal(packed.rows.branch_ids_BT[0, :5], [0, 0, 1, 0, 1])
  np.testing.assert_array_equal(packed.rows.positions_BT[0, :5], [0, 1, 2, 0, 1])
  assert packed.places == (Place(0, 1, 2), Place(0, 0, 1))


def test_a_group_larger_than_a_row_repeats_its_prompt():
  items = [trajectory([1, 2, 3, *[10 + i] * 6], "...aaaaaa") for i in range(3)]
  packed = pack(items, CONFIG)  # 8 action slots: one completion a row
  assert [place.row for place in packed.places] == [0, 1, 2]
  assert packed.rows.tokens_BT.shape == (4, 16)
  np.testing.assert_array_equal(packed.rows.tokens_BT[:3, :3], [[1, 2, 3]] * 3)


def test_first_fit_fills_rows():
  items = [trajectory([1, *[2] * n], "." + "a" * n, group=n) for n in (1, 2, 3, 4, 5, 6)]
  packed = pack(items, PackConfig(length=14, actions=8, rows=1))
  assert packed.rows.tokens_BT.shape[0] == 3  # 6 + 2, 5 + 3, 4 + 1
  assert packed.places[0] == Place(2, 4, 5)


def test_spread_and_gather():
  items = [trajectory([1, 2, 3, 4], "..aa"), trajectory([1, 2, 5, 6, 7], "..a.a")]
  packed = pack(items, CONFIG)
  np.testing.assert_array_equal(packed.spread([2.0, -1.0])[0], [2, 2, -1, -1, 0, 0, 0, 0])
  values = [np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0])]
  spread_BA = packed.spread(values)
  assert spread_BA.dtype == np.float32
  assert not spread_BA[~packed.rows.mask_BA].any()
  for got, want in zip(packed.gather(spread_BA), values, strict=True):
    np.testing.assert_array_equal(got, want)
  with pytest.raises(ValueError, match="shorter"):
    packed.spread([1.0])


def test_nothing_to_pack():
  packed = pack([], CONFIG)
  assert packed.rows.tokens_BT.shape == (2, 16)
  assert packed.places == ()
  assert not packed.rows.mask_BA.any()


@pytest.mark.parametrize(
  ("items", "message"),
  [
    ([trajectory([1, 2, 3], "...")], r"at least one action, has 3 tokens and 0 actions"),
    ([trajectory([1, 2, 3], "aaa")], r"needs a prompt"),
    ([trajectory(range(17), "." * 16 + "a")], r"17 tokens and 1 actions.*16 tokens.*pack.length"),
    ([trajectory(range(10), "." + "a" * 9)], r"9 actions does not fit.*8 action slots"),
    ([trajectory([1, 2], ".a", 5), trajectory([3, 2], ".a", 5)], r"group 5 have different prompts"),
    ([trajectory([1, 2], ".a", 5), trajectory([1, 2, 2], "..a", 5)], r"different prompts"),
  ],
)  # fmt: skip
def test_errors(items, message):
  with pytest.raises(ValueError, match=message):
    pack(items, CONFIG)


@pytest.mark.parametrize("field", ["length", "actions", "rows"])
def test_config_errors(field):
  with pytest.raises(ValueError, match=rf"pack.{field} 0 must be >= 1"):
    PackConfig(**{field: 0})


@st.composite
def groups(draw):
  """Groups of trajectories with shared prompts, in any order; tokens all distinct."""
  items, token = [], iter(range(1, 10_000))
  for group in range(draw(st.integers(1, 5))):
    prompt = [next(token) for _ in range(draw(st.integers(1, 6)))]
    for _ in range(draw(st.integers(1, 5))):
      mask = "a" + draw(st.text("a.", max_size=5))
      tokens = prompt + [next(token) for _ in mask]
      items.append(trajectory(tokens, "." * len(prompt) + mask, group))
  return draw(st.permutations(items))


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(groups(), st.integers(12, 40), st.integers(6, 20), st.integers(1, 3))
def test_every_action_once_behind_its_own_history(items, length, actions, num_rows):
  packed = pack(items, PackConfig(length, actions, num_rows))
  rows = packed.rows
  assert rows.tokens_BT.shape[0] % num_rows == 0
  assert int(rows.mask_BA.sum()) == sum(item.num_actions for item in items)
  seen = set()
  for item, place in zip(items, packed.places, strict=True):
    row, slots = place.row, range(place.start, place.stop)
    at = np.flatnonzero(item.action_mask)
    assert len(slots) == len(at)
    assert not seen & {(row, slot) for slot in slots}
    seen |= {(row, slot) for slot in slots}
    assert rows.mask_BA[row, place.start : place.stop].all()
    np.testing.assert_array_equal(rows.target_BA[row, place.start : place.stop], item.tokens[at])
    assert len(set(rows.sequence_BA[row, place.start : place.stop].tolist())) == 1
    for slot, position in zip(slots, at.tolist(), strict=True):
      predictor = int(rows.predictor_BA[row, slot])
      assert rows.positions_BT[row, predictor] == position - 1
      # All that the predictor sees by the rule of `kernels.mask` is the history, in order.
      segment, branch = (x[row] for x in (rows.segment_ids_BT, rows.branch_ids_BT))
      own = (branch == 0) | (branch == branch[predictor])
      sees = (segment == segment[predictor]) & own & (np.arange(length) <= predictor)
      np.testing.assert_array_equal(rows.tokens_BT[row, sees], item.tokens[:position])
      np.testing.assert_array_equal(rows.positions_BT[row, sees], np.arange(position))
