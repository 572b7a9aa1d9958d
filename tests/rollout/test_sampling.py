"""Sampling: the golden cases, the statistics of the inverse CDF, and what rows may not share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.rollout.sampling import (
  SamplingConfig,
  SamplingParams,
  inverse_cdf,
  penalise,
  probabilities,
  sample,
)

CHI_SQUARE_999 = {2: 13.82, 5: 20.52}  # by degrees of freedom
LARGEST_UNIFORM = 1 - 2**-24


def filter_case(logits, prompt_ids=(), output_ids=(), **settings):
  penalties = {
    name: settings.pop(f"{name}_penalty")
    for name in ("repetition", "frequency", "presence")
    if f"{name}_penalty" in settings
  }
  config = SamplingConfig(**settings)
  prompt_counts, output_counts = (
    np.bincount(np.asarray(ids, int), minlength=len(logits))[None]
    for ids in (prompt_ids, output_ids)
  )
  logits_RV = penalise(jnp.asarray(logits)[None], prompt_counts, output_counts, **penalties)
  probs_V = np.asarray(probabilities(logits_RV, SamplingParams.of(config, 1)))[0]
  return {"probs": probs_V, "kept": np.flatnonzero(probs_V)}


@pytest.mark.golden("sampling", dtypes=(np.float32,))
def test_golden(case):
  case.check({"filter": filter_case})


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": -0.5}, "temperature -0.5"),
    ({"temperature": float("nan")}, "temperature nan"),
    ({"top_k": -2}, "top_k -2"),
    ({"top_p": 0.0}, "top_p 0.0"),
    ({"top_p": 1.1}, "top_p 1.1"),
    ({"min_p": -0.1}, "min_p -0.1"),
    ({"min_p": 1.5}, "min_p 1.5"),
  ],
)
def test_config_errors(settings, message):
  with pytest.raises(ValueError, match=message):
    SamplingConfig(**settings)


def params_of(*configs):
  """One row for each config."""
  rows = [SamplingParams.of(config, 1) for config in configs]
  return SamplingParams(*(jnp.concatenate(column) for column in zip(*rows, strict=True)))


def draws(weights, count=20_000):
  """Drawn ids of `count` keys, from the log of the weights."""
  logits_RV = jnp.broadcast_to(jnp.log(jnp.asarray(weights, jnp.float32)), (count, len(weights)))
  keys_R = jax.random.split(jax.random.key(7), count)
  return np.asarray(jax.jit(sample)(logits_RV, keys_R, SamplingParams.of(SamplingConfig(), count)))


@pytest.mark.parametrize(
  ("ids", "num_vocab"),
  [
    ((0, 1, 2, 3, 4, 5), 6),
    ((0, 255, 256, 511, 512, 599), 600),  # both sides of every block edge, a rest of 88
    ((0, 200, 299), 300),
  ],
)
def test_frequencies_are_the_probabilities(ids, num_vocab):
  probs = np.asarray([0.4, 0.25, 0.2, 0.1, 0.04, 0.01])[: len(ids)]
  probs = probs / probs.sum()
  weights = np.zeros(num_vocab)
  weights[list(ids)] = probs
  tokens, logprobs = draws(weights)
  tokens = tokens.astype(int)
  counts = np.bincount(tokens, minlength=num_vocab)
  assert counts[weights == 0].sum() == 0
  expected = probs * len(tokens)
  chi_square = np.sum((counts[list(ids)] - expected) ** 2 / expected)
  assert chi_square < CHI_SQUARE_999[len(ids) - 1]
  np.testing.assert_allclose(logprobs, np.log(weights[tokens]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_vocab", [1, 5, 255, 256, 257, 700])
def test_inverse_cdf_is_searchsorted(num_vocab):
  """With integer weights the sums are exact, so every id owns exactly its interval."""
  weights_V = np.random.default_rng(num_vocab).integers(0, 4, size=num_vocab)
  weights_V[0] = 1
  total = int(weights_V.sum())
  uniform_R = (np.arange(total) + 0.5) / total
  got_R = inverse_cdf(
    jnp.broadcast_to(jnp.asarray(weights_V, jnp.float32), (total, num_vocab)),
    jnp.asarray(uniform_R, jnp.float32),
  )
  np.testing.assert_array_equal(got_R, np.repeat(np.arange(num_vocab), weights_V))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-10, LARGEST_UNIFORM])
@pytest.mark.parametrize("seed", range(4))
def test_ids_of_weight_zero_are_never_drawn(seed, uniform):
  """Zeros at both ends of rows and of blocks, and weights over many orders of magnitude."""
  rng = np.random.default_rng(seed)
  weights_RV = np.exp(rng.normal(scale=8, size=(64, 700))).astype(np.float32)
  weights_RV *= rng.uniform(size=weights_RV.shape) < rng.choice([0.002, 0.1, 0.9], size=(64, 1))
  weights_RV[:, [0, 255, 256, 512, 699]] = 0
  weights_RV[np.arange(64), rng.integers(1, 200, size=64)] += 1e-3
  got_R = np.asarray(inverse_cdf(jnp.asarray(weights_RV), jnp.full(64, uniform, jnp.float32)))
  assert (weights_RV[np.arange(64), got_R] > 0).all()


def test_inverse_cdf_at_the_ends():
  weights_RV = jnp.zeros((2, 600)).at[:, jnp.asarray([3, 300, 590])].set(1.0)
  np.testing.assert_array_equal(
    inverse_cdf(weights_RV, jnp.asarray([0.0, LARGEST_UNIFORM])), [3, 590]
  )


CONFIGS = {
  "plain": SamplingConfig(),
  "cold": SamplingConfig(temperature=0.7),
  "top_k": SamplingConfig(top_k=5),
  "top_p": SamplingConfig(temperature=0.7, top_p=0.6),
  "min_p": SamplingConfig(min_p=0.2),
  "all": SamplingConfig(temperature=1.3, top_k=9, top_p=0.8, min_p=0.05),
  "greedy": SamplingConfig(temperature=0.0, top_k=5, top_p=0.5),
}


@functools.partial(jax.jit, static_argnums=1)
def drawn(logits_RV, seed, params):
  keys_R = jax.random.split(jax.random.key(seed), logits_RV.shape[0])
  return (*sample(logits_RV, keys_R, params), probabilities(logits_RV, params))


def test_rows_do_not_depend_on_their_neighbours():
  """Each row among filtered and unfiltered ones, and among copies of its own settings."""
  configs = list(CONFIGS.values())
  rows = len(configs)
  logits_RV = 3 * jax.random.normal(jax.random.key(0), (rows, 300))
  mixed = drawn(logits_RV, 1, params_of(*configs))
  for row, config in enumerate(configs):
    same = drawn(logits_RV, 1, SamplingParams.of(config, rows))
    others = jnp.where(jnp.arange(rows)[:, None] == row, logits_RV, -logits_RV)
    moved = drawn(others, 1, params_of(*configs))
    for a, b, c in zip(mixed, same, moved, strict=True):
      np.testing.assert_array_equal(a[row], b[row])
      np.testing.assert_array_equal(a[row], c[row])


@pytest.mark.parametrize("name", CONFIGS)
def test_logprob_is_the_log_of_the_probability(name):
  logits_RV = 3 * jax.random.normal(jax.random.key(0), (64, 300))
  tokens_R, logprobs_R, probs_RV = drawn(logits_RV, 2, SamplingParams.of(CONFIGS[name], 64))
  probs_RV = np.asarray(probs_RV, np.float64)
  np.testing.assert_allclose(probs_RV.sum(-1), 1, rtol=1e-5)
  want_R = np.log(probs_RV[np.arange(64), tokens_R])  # of a probability > 0
  np.testing.assert_allclose(logprobs_R, want_R, rtol=0, atol=1e-5)


def test_greedy_takes_the_lowest_of_equal_logits():
  logits_RV = jnp.asarray([[0.5, 2.0, -1.0, 2.0]] * 8)
  tokens_R, logprobs_R, _ = drawn(logits_RV, 3, SamplingParams.of(CONFIGS["greedy"], 8))
  np.testing.assert_array_equal(tokens_R, 1)
  np.testing.assert_array_equal(logprobs_R, 0.0)


def test_forbidden_ids_are_never_drawn():
  logits_RV = jnp.full((256, 300), -jnp.inf).at[:, 7].set(0.0).at[:, 290].set(1.0)
  for config in CONFIGS.values():
    tokens_R, logprobs_R, _ = drawn(logits_RV, 4, SamplingParams.of(config, 256))
    assert set(np.asarray(tokens_R).tolist()) <= {7, 290}
    assert np.isfinite(logprobs_R).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_logits_never_leave_the_vocabulary(broken):
  """Their log-prob is no number, which the caller sees; the id is still an id."""
  for fill in (jnp.full((2, 300), broken), jnp.zeros((2, 300)).at[:, 3].set(broken)):
    tokens_R, logprobs_R, _ = drawn(fill, 5, SamplingParams.of(CONFIGS["plain"], 2))
    assert ((tokens_R >= 0) & (tokens_R < 300)).all()
    if broken != -np.inf or np.isneginf(fill).all():
      assert np.isnan(logprobs_R).all()


def test_a_row_depends_on_its_own_key():
  logits_RV = jnp.zeros((2, 300))
  same = jax.random.split(jax.random.key(0), 1)[jnp.asarray([0, 0])]
  tokens_R, _ = sample(logits_RV, same, SamplingParams.of(SamplingConfig(), 2))
  assert tokens_R[0] == tokens_R[1]
  other = jax.random.split(jax.random.key(0), 2)
  tokens_R, _ = sample(logits_RV, other, SamplingParams.of(SamplingConfig(), 2))
  assert tokens_R[0] != tokens_R[1]
