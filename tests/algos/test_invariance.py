"""No way of laying out a batch changes loss or gradient, whatever the objective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from objective_cases import (
  OBJECTIVES,
  ROWS,
  SLOTS,
  as_dtype,
  by_trajectory,
  lay_out,
  loss_and_grads,
  random_trajectories,
  weights_for,
)

from ptjax.algos.aggregate import AGGREGATIONS
from ptjax.train.objectives import action_loss

every_objective = pytest.mark.parametrize("name", OBJECTIVES)
lengths_lists = st.lists(st.integers(0, 5), min_size=1, max_size=ROWS)
garbage = st.sampled_from([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0])


def assert_same(got, expected):
  """Of (loss, gradients by trajectory)."""
  np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)
  for i, grads in expected[1].items():
    np.testing.assert_allclose(got[1][i], grads, rtol=1e-5, atol=1e-6)


def measure(name, trajectories, weights, rows, value=0.0, gap=0):
  loss, grads = loss_and_grads(name, *lay_out(trajectories, weights, rows, value, gap))
  return loss, by_trajectory(grads, trajectories, rows, gap)


def packing(order, lengths, per_row):
  """The trajectories in that order, `per_row` a row, less where they would not fit."""
  rows = [[]]
  for i in order:
    used = sum(lengths[j] + 1 for j in rows[-1])
    if len(rows[-1]) >= per_row or used + lengths[i] > SLOTS:
      rows.append([])
    rows[-1].append(i)
  return rows


@every_objective
@settings(max_examples=12, deadline=None)
@given(
  lengths=lengths_lists,
  mode=st.sampled_from(AGGREGATIONS),
  value=garbage,
  per_row=st.integers(1, 3),
  random=st.randoms(use_true_random=False),
)
def test_padding_packing_and_permutation_skyrl_1635(name, lengths, mode, value, per_row, random):
  """Alone in clean rows, against shuffled packs with garbage at every unused slot."""
  trajectories = random_trajectories(lengths)
  weights = weights_for(mode, trajectories)
  expected = measure(name, trajectories, weights, [[i] for i in range(len(lengths))])
  order = list(range(len(lengths)))
  random.shuffle(order)
  got = measure(name, trajectories, weights, packing(order, lengths, per_row), value, gap=1)
  assert np.isfinite(got[0])
  assert_same(got, expected)


@every_objective
@settings(max_examples=8, deadline=None)
@given(lengths=lengths_lists, mode=st.sampled_from(AGGREGATIONS), cut=st.integers(0, ROWS))
def test_micro_batches_add_up_verl_6957_maxtext_3040(name, lengths, mode, cut):
  """The parts of a batch, one of them perhaps empty, sum to the whole: loss and gradient."""
  trajectories = random_trajectories(lengths, seed=1)
  weights = weights_for(mode, trajectories)
  rows = [[i] for i in range(len(lengths))]
  expected = measure(name, trajectories, weights, rows)
  first = measure(name, trajectories, weights, rows[:cut])
  empty_rows = [[] for _ in rows[:cut]]
  second = measure(name, trajectories, weights, [*empty_rows, *rows[cut:]])
  assert_same((first[0] + second[0], first[1] | second[1]), expected)


@every_objective
@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_a_duplicated_batch_has_the_same_loss_and_gradient(name, lengths):
  """A trajectory's gradient is spread over its two copies; `fixed` divides by what it is told."""
  for mode in set(AGGREGATIONS) - {"fixed"}:
    trajectories = random_trajectories(lengths, seed=2)
    domains = [("a", "b")[i % 2] for i in range(len(lengths))]
    rows = [[i] for i in range(len(lengths))]
    loss, grads = measure(name, trajectories, weights_for(mode, trajectories, domains), rows)
    twice = trajectories * 2
    doubled_rows = [[i] for i in range(len(twice))]
    weights = weights_for(mode, twice, domains * 2)
    doubled, parts = measure(name, twice, weights, doubled_rows)
    copies = {i: parts[i] + parts[i + len(lengths)] for i in grads}
    assert_same((doubled, copies), (loss, grads))


@every_objective
def test_sharding_over_devices_with_empty_shards_slime_2235(name):
  """Five rows with trajectories over eight devices: three shards hold padding alone."""
  lengths = [3, 5, 1, 4, 2, 5, 3]
  trajectories = random_trajectories(lengths, seed=3)
  weights = weights_for("token_mean", trajectories)
  rows = [[0, 1], [2], [3, 4], [5], [6]]
  logp, entropy, batch = lay_out(trajectories, weights, rows)
  loss, grads = loss_and_grads(name, logp, entropy, batch)
  mesh = Mesh(np.asarray(jax.devices()[:8]), ("data",))
  split = NamedSharding(mesh, PartitionSpec("data"))
  placed = jax.device_put((logp, entropy, batch), split)
  sharded, sharded_grads = loss_and_grads(name, *placed)
  assert len(sharded_grads[0].sharding.device_set) == 8
  np.testing.assert_allclose(sharded, loss, rtol=1e-6)
  np.testing.assert_allclose(np.array(sharded_grads), np.array(grads), rtol=1e-6, atol=1e-8)


@every_objective
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_a_batch_without_actions_is_exactly_zero_openrlhf_583(name, value):
  logp, entropy, batch = lay_out([], [], [], value)
  loss, grads = loss_and_grads(name, logp, entropy, batch)
  assert loss == 0
  assert np.all(np.array(grads) == 0)


@pytest.mark.parametrize(
  ("name", "dtype"),
  [*((name, jnp.float16) for name in OBJECTIVES), ("ppo", jnp.bfloat16), ("gspo", jnp.bfloat16)],
)
def test_half_precision_inputs_are_computed_in_float32(name, dtype):
  """Bit for bit what float32 gives on the rounded values; ratios of e^20 included."""
  trajectories = random_trajectories([4, 5], seed=4)
  trajectories[0]["old"][0] = trajectories[0]["logp"][0] - 25
  weights = weights_for("token_mean", trajectories)
  logp, entropy, batch = lay_out(trajectories, weights, [[0], [1]], 0.0)
  half = [jnp.asarray(x, dtype) for x in (logp, entropy)]
  grad = jax.jit(jax.value_and_grad(lambda *args: action_loss(OBJECTIVES[name], *args)[0]))
  loss, grad_half = grad(*half, as_dtype(batch, dtype))
  wide, grad_wide = grad(
    *(x.astype(jnp.float32) for x in half),
    jax.tree.map(
      lambda x: x.astype(jnp.float32) if x.dtype == dtype else x, as_dtype(batch, dtype)
    ),
  )
  assert loss.dtype == jnp.float32
  assert np.isfinite(loss)
  np.testing.assert_allclose(loss, wide, rtol=1e-6)
  np.testing.assert_array_equal(grad_half, grad_wide.astype(dtype))
