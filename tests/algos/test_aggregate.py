"""Normalisation: weights by hand, and no way of cutting a batch changes loss or gradient."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.algos.aggregate import AGGREGATIONS, token_weights, weighted_sum
from ptjax.algos.policy_loss import gspo, ppo_clip
from ptjax.core.masked import fill

OPTIONS = {"seq_mean_token_sum_norm": {"l_max": 8}, "fixed": {"constant": 32.0}}
SHARES = {"maths": 3.0, "code": 1.0}
every_mode = pytest.mark.parametrize("mode", AGGREGATIONS)


@pytest.mark.parametrize(
  ("mode", "expected"),
  [
    ("token_mean", [1 / 7, 1 / 7, 0, 1 / 7]),
    ("seq_mean_token_mean", [1 / 12, 1 / 3, 0, 1 / 6]),
    ("seq_mean_token_sum_norm", [1 / 24, 1 / 24, 0, 1 / 24]),
    ("fixed", [1 / 32, 1 / 32, 0, 1 / 32]),
  ],
)
def test_weights_by_hand_trl_6439(mode, expected):
  """Lengths 4, 1, 0, 2: the empty trajectory is in no denominator."""
  weights = token_weights(mode, [4, 1, 0, 2], **OPTIONS.get(mode, {}))
  np.testing.assert_allclose(weights, expected, rtol=1e-12)


def weigh(mode, lengths):
  """Weights where every second trajectory is of domain code."""
  options = OPTIONS.get(mode, {})
  if mode == "domain_balanced":
    domains = [("maths", "code")[i % 2] for i in range(len(lengths))]
    options = {"domains_E": domains, "shares": SHARES}
  return token_weights(mode, lengths, **options)


@every_mode
def test_all_masked_batch_gives_exact_zero_openrlhf_583(mode):
  assert np.all(weigh(mode, [0, 0]) == 0)
  nan = np.full((2, 3), np.nan, np.float32)
  loss, grad = jax.value_and_grad(lambda x: weighted_sum(x, nan, np.zeros((2, 3))))(nan)
  assert loss == 0
  assert np.all(np.asarray(grad) == 0)


@pytest.mark.parametrize(
  ("mode", "options", "message"),
  [
    ("mean", {}, "choose one of token_mean"),
    ("seq_mean_token_sum_norm", {}, "l_max must be a number > 0"),
    ("seq_mean_token_sum_norm", {"l_max": 0}, "l_max must be a number > 0"),
    ("fixed", {"constant": -1.0}, "constant must be a number > 0"),
  ],
)
def test_bad_options_are_errors(mode, options, message):
  with pytest.raises(ValueError, match=message):
    token_weights(mode, [1, 2], **options)


def test_domains_weigh_by_their_share_not_their_length():
  """The case of the mixture 3:1 whose second domain writes 99% of the tokens."""
  domains = ["maths", "maths", "code", "code"]
  weights = token_weights("domain_balanced", [40, 60, 9900, 0], domains_E=domains, shares=SHARES)
  np.testing.assert_allclose(weights, [3 / 400, 3 / 400, 1 / 39600, 0], rtol=1e-12)
  # A domain without a token in this batch leaves its share to the others.
  alone = token_weights("domain_balanced", [40, 60, 0, 0], domains_E=domains, shares=SHARES)
  np.testing.assert_allclose(alone, [1 / 100, 1 / 100, 0, 0], rtol=1e-12)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({}, "needs the domain of each of the 2"),
    ({"domains_E": ["maths"], "shares": SHARES}, "needs the domain of each of the 2"),
    ({"domains_E": ["maths", "art"], "shares": SHARES}, "domain 'art' has no share > 0"),
  ],
)
def test_domain_balance_without_domains_or_shares_is_an_error(options, message):
  with pytest.raises(ValueError, match=message):
    token_weights("domain_balanced", [1, 2], **options)


def test_negative_length_is_an_error():
  with pytest.raises(ValueError, match="got -1"):
    token_weights("token_mean", [1, -1])


NUM_ROWS, ROW, NUM_SEGMENTS = 8, 12, 6


def lay_out(trajectories, weights, rows_of_trajectories):
  """Packs trajectories into rows, one masked gap after each; everything else is NaN."""
  arrays = {
    name: np.full((NUM_ROWS, ROW), np.nan, np.float32)
    for name in ("logp_new", "logp_old", "advantages", "weights")
  }
  mask = np.zeros((NUM_ROWS, ROW), bool)
  segment_ids = np.zeros((NUM_ROWS, ROW), np.int32)
  for row, members in enumerate(rows_of_trajectories):
    start = 0
    for segment, i in enumerate(members):
      stop = start + len(trajectories[i]["logp_new"])
      for name in ("logp_new", "logp_old"):
        arrays[name][row, start:stop] = trajectories[i][name]
      arrays["advantages"][row, start:stop] = trajectories[i]["advantage"]
      arrays["weights"][row, start:stop] = weights[i]
      mask[row, start:stop] = True
      segment_ids[row, start:stop] = segment
      start = stop + 1
  return arrays, mask, segment_ids


@partial(jax.jit, static_argnames="objective")
def loss_and_grad(logp_new, logp_old, advantages, weights, mask, segment_ids, objective):
  def loss(logp_new):
    clean = [fill(x, mask) for x in (logp_new, logp_old, advantages)]
    if objective == "gspo":
      segments = {"mask": mask, "segment_ids": segment_ids, "num_segments": NUM_SEGMENTS}
      loss_tokens, _ = gspo(*clean, **segments, clip_low=0.2, clip_high=0.28)
    else:
      loss_tokens, _ = ppo_clip(*clean, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    return weighted_sum(loss_tokens, weights, mask)

  return jax.value_and_grad(loss)(logp_new)


@pytest.mark.parametrize("objective", ["ppo", "gspo"])
@every_mode
@settings(max_examples=15, deadline=None)
@given(
  lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
  random=st.randoms(use_true_random=False),
)
def test_packing_and_micro_batches_leave_loss_and_gradient_unchanged_verl_6957_areal_1273(
  objective, mode, lengths, random
):
  """One padded sequence a row, against shuffled packs of two split into micro-batches of a row."""
  rng = np.random.default_rng(sum(lengths))
  trajectories = [
    {
      "logp_new": rng.uniform(-2, 0, n).astype(np.float32),
      "logp_old": rng.uniform(-2, 0, n).astype(np.float32),
      "advantage": rng.normal(),
    }
    for n in lengths
  ]
  weights = weigh(mode, lengths)
  order = list(range(len(lengths)))
  plain_rows = [[i] for i in order]
  random.shuffle(order)
  packed_rows = [order[i : i + 2] for i in range(0, len(order), 2)]

  def gather(grad, rows):
    """Gradient by trajectory, and what is left of it outside all trajectories."""
    grad, by_trajectory = np.array(grad), {}
    for row, members in enumerate(rows):
      start = 0
      for i in members:
        by_trajectory[i] = grad[row, start : start + lengths[i]].copy()
        grad[row, start : start + lengths[i]] = 0
        start += lengths[i] + 1
    assert np.all(grad == 0)
    return by_trajectory

  arrays, mask, ids = lay_out(trajectories, weights, plain_rows)
  loss, grad = loss_and_grad(**arrays, mask=mask, segment_ids=ids, objective=objective)
  expected = gather(grad, plain_rows)

  arrays, mask, ids = lay_out(trajectories, weights, packed_rows)
  micro_losses, micro_grad = [], np.zeros_like(grad)
  for row in range(len(packed_rows)):
    only = mask & (np.arange(NUM_ROWS) == row)[:, None]
    part, part_grad = loss_and_grad(**arrays, mask=only, segment_ids=ids, objective=objective)
    micro_losses.append(part)
    micro_grad += part_grad
  np.testing.assert_allclose(sum(micro_losses), loss, atol=1e-5)
  for i, got in gather(micro_grad, packed_rows).items():
    np.testing.assert_allclose(got, expected[i], atol=1e-6)
