"""Group advantages: golden cases, the faults of peers, invariances."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.algos.advantages import (
  ADVANTAGES,
  grpo,
  reinforce_pp,
  reinforce_pp_baseline,
  rloo,
  spread_over_tokens,
)


def op_group(name):
  def op(rewards, group_ids, valid=None):
    return {"advantages": ADVANTAGES[name](rewards, group_ids, valid)}

  return op


def op_reinforce_pp(token_rewards, mask, gamma):
  advantages, returns = jax.jit(reinforce_pp)(token_rewards, mask, gamma)
  return {"advantages": advantages, "returns": returns}


def op_reinforce_pp_baseline(rewards, group_ids, mask, valid=None):
  advantages = reinforce_pp_baseline(rewards, group_ids, valid, mask.sum(1))
  return {"advantages": spread_over_tokens(advantages, mask)}


OPS = {name: op_group(name) for name in ADVANTAGES} | {
  "reinforce_pp": op_reinforce_pp,
  "reinforce_pp_baseline": op_reinforce_pp_baseline,
}
every_estimator = pytest.mark.parametrize("name", ADVANTAGES)


def estimate(name, rewards, group_ids, valid=None):
  return ADVANTAGES[name](rewards, group_ids, valid, np.ones(len(rewards)))


@pytest.mark.golden("advantages_group")
def test_golden(case):
  case.check(OPS)


@every_estimator
def test_constant_group_tolerance_slime_1674(name):
  """Equal up to rounding is equal: 0.1 + 0.2 and 0.3 in one group say nothing."""
  advantages = estimate(name, [0.1 + 0.2, 0.3, 0.3, 1.0, 0.0], [0, 0, 0, 1, 1])
  assert np.all(advantages[:3] == 0)
  assert np.all(advantages[3:] != 0)


def test_leave_one_out_has_no_float32_residue_nemo_1518():
  """Rewards that float32 stores inexactly, all equal: sums of differing order would not cancel."""
  assert np.all(rloo(np.full(7, 0.35, np.float32), np.zeros(7, int)) == 0)


@every_estimator
def test_one_sample_group_is_an_error_openrlhf_1250(name):
  with pytest.raises(ValueError, match="group 7 has one sample"):
    estimate(name, [1.0, 0.0, 0.5], [3, 3, 7])


@every_estimator
def test_missing_reward_is_excluded_not_zero_trl_5902(name):
  """The other members get what they would get had the member without a reward not been there."""
  with_missing = estimate(name, [1.0, None, 0.25, 0.5], [0, 0, 0, 0])
  without = estimate(name, [1.0, 0.25, 0.5], [0, 0, 0])
  np.testing.assert_array_equal(with_missing, np.insert(without, 1, 0.0))


@every_estimator
def test_failed_infrastructure_is_dropped_openenv_1025(name):
  """valid = false hides even a NaN reward, and is not the same as scoring 0."""
  valid = [True, False, True, True]
  dropped = estimate(name, [1.0, float("nan"), 0.25, 0.5], [0, 0, 0, 0], valid)
  np.testing.assert_array_equal(dropped, estimate(name, [1.0, None, 0.25, 0.5], [0, 0, 0, 0]))
  assert not np.array_equal(dropped, estimate(name, [1.0, 0.0, 0.25, 0.5], [0, 0, 0, 0]))


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
@every_estimator
def test_reward_that_is_not_finite_is_an_error(name, reward):
  with pytest.raises(ValueError, match="reward 1"):
    estimate(name, [1.0, reward, 0.0], [0, 0, 0])


@every_estimator
def test_no_trajectories_give_no_advantages(name):
  assert estimate(name, [], []).shape == (0,)


def test_unequal_lengths_are_an_error():
  with pytest.raises(ValueError, match="2 rewards, 3 group ids"):
    grpo([1.0, 0.0], [0, 0, 0])


def test_negative_reward_is_an_error_for_maxrl():
  with pytest.raises(ValueError, match=r"reward 1 is -0\.5"):
    ADVANTAGES["maxrl"]([1.0, -0.5], [0, 0])


def test_baseline_without_lengths_is_an_error():
  with pytest.raises(ValueError, match="lengths_E"):
    reinforce_pp_baseline([1.0, 0.0], [0, 0])


rewards_and_groups = st.lists(
  st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 2)), max_size=8
).map(lambda pairs: pairs + [(0.0, g) for g in range(3)] + [(1.0, g) for g in range(3)])


@every_estimator
@settings(max_examples=20, deadline=None)
@given(rewards_and_groups, st.randoms(use_true_random=False))
def test_order_and_group_names_do_not_matter(name, pairs, random):
  order = list(range(len(pairs)))
  random.shuffle(order)
  rewards, groups = map(np.array, zip(*pairs, strict=True))
  got = estimate(name, rewards[order], (10 - 3 * groups)[order])
  np.testing.assert_allclose(got, estimate(name, rewards, groups)[order], atol=1e-12)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "grpo_batch_std", "rloo", "maxrl"])
@settings(max_examples=20, deadline=None)
@given(rewards_and_groups)
def test_advantages_of_a_group_sum_to_zero(name, pairs):
  rewards, groups = map(np.array, zip(*pairs, strict=True))
  sums = np.bincount(groups, estimate(name, rewards, groups))
  np.testing.assert_allclose(sums, 0, atol=1e-9)
