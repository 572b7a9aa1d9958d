"""From logits to a sampled token: penalties, temperature, filters, inverse CDF.

The order of operations is that of `tests/golden/README.md`, family sampling: penalties,
temperature, min-p, top-k, top-p, renormalisation. Everything is float32.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

_CDF_BLOCK = 256  # ids per block of the two-level inverse CDF


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """How a token is drawn.

  Attributes:
    temperature: divides the logits; 0 takes the argmax.
    top_k: largest logits kept; 0 keeps all.
    top_p: probability mass kept, in (0, 1]; 1 keeps all.
    min_p: share of the largest probability that a token needs; 0 keeps all.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0

  def __post_init__(self):
    if not self.temperature >= 0:
      raise ValueError(f"temperature {self.temperature} must be >= 0 (0 takes the argmax)")
    if self.top_k < -1:
      raise ValueError(f"top_k {self.top_k} must be >= 1, or 0 or -1 to keep all")
    if not 0 < self.top_p <= 1:
      raise ValueError(f"top_p {self.top_p} must be in (0, 1]; 1 keeps all")
    if not 0 <= self.min_p <= 1:
      raise ValueError(f"min_p {self.min_p} must be in [0, 1]; 0 keeps all")

  @property
  def filtered(self) -> bool:
    """Whether any token can be removed."""
    return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


class SamplingParams(NamedTuple):
  """`SamplingConfig` of each row, as arrays."""

  temperature_R: jax.Array
  top_k_R: jax.Array
  top_p_R: jax.Array
  min_p_R: jax.Array

  @classmethod
  def of(cls, config: SamplingConfig, rows: int) -> "SamplingParams":
    """The same settings for every row."""
    return cls(
      jnp.full(rows, config.temperature, jnp.float32),
      jnp.full(rows, config.top_k, jnp.int32),
      jnp.full(rows, config.top_p, jnp.float32),
      jnp.full(rows, config.min_p, jnp.float32),
    )

  def filtered_R(self) -> jax.Array:
    """bool[R], rows whose filters can remove a token; a greedy row ignores filters."""
    filters_R = (self.top_k_R > 0) | (self.top_p_R < 1) | (self.min_p_R > 0)
    return filters_R & (self.temperature_R > 0)


def penalise(
  logits_RV: jax.Array,
  prompt_counts_RV: jax.Array,
  output_counts_RV: jax.Array,
  *,
  repetition: float = 1.0,
  frequency: float = 0.0,
  presence: float = 0.0,
) -> jax.Array:
  """Repetition penalty (Keskar et al., 2019), then frequency and presence penalties.

  Args:
    logits_RV: raw logits.
    prompt_counts_RV: how often each id stands in the prompt.
    output_counts_RV: how often each id was generated so far.
    repetition: divides positive and multiplies negative logits of seen ids.
    frequency: subtracted once for each time the id was generated.
    presence: subtracted once if the id was generated.
  """
  seen = (prompt_counts_RV + output_counts_RV) > 0
  repeated = jnp.where(logits_RV > 0, logits_RV / repetition, logits_RV * repetition)
  logits_RV = jnp.where(seen, repeated, logits_RV)
  return logits_RV - frequency * output_counts_RV - presence * (output_counts_RV > 0)


def keep_mask(weights_RV: jax.Array, params: SamplingParams) -> jax.Array:
  """bool[R, V], the ids that survive min-p, top-k and top-p.

  Args:
    weights_RV: exp(z - max z), z = logits / temperature; ids of weight 0 never survive.
    params: settings of each row.

  On ties the lower ids are kept; at least one id survives.
  """
  num_vocab = weights_RV.shape[-1]
  min_p_RV = weights_RV >= params.min_p_R[:, None] * jnp.max(weights_RV, -1, keepdims=True)
  weights_RV = jnp.where(min_p_RV, weights_RV, 0.0)
  # A stable sort of the negated weights puts the lower id first on ties.
  order_RV = jnp.argsort(-weights_RV, axis=-1, stable=True)
  sorted_RV = jnp.take_along_axis(weights_RV, order_RV, axis=-1)
  rank_V = jnp.arange(num_vocab)
  top_k_R = jnp.where(params.top_k_R > 0, params.top_k_R, num_vocab)
  sorted_RV = jnp.where(rank_V < top_k_R[:, None], sorted_RV, 0.0)
  mass_before_RV = jnp.cumsum(sorted_RV, -1) - sorted_RV
  wanted_R = params.top_p_R * jnp.sum(sorted_RV, -1)
  needed_RV = (mass_before_RV < wanted_R[:, None]) | (rank_V == 0)
  kept_sorted_RV = needed_RV & (sorted_RV > 0)
  rows = jnp.arange(weights_RV.shape[0])[:, None]
  return jnp.zeros(weights_RV.shape, bool).at[rows, order_RV].set(kept_sorted_RV)


def unnormalised(logits_RV: jax.Array, params: SamplingParams):
  """(weights_RV, top_R): exp(z - max z) with the removed ids at 0, and max z.

  Sorting the vocabulary is dear, so it happens only when some row filters, and the rows
  that do not filter are not touched by it: their bits do not depend on their neighbours.
  """
  greedy_R = params.temperature_R == 0
  z_RV = logits_RV.astype(jnp.float32) / jnp.where(greedy_R, 1.0, params.temperature_R)[:, None]
  top_R = jnp.max(z_RV, axis=-1)
  weights_RV = jnp.exp(z_RV - top_R[:, None])
  filtered_R = params.filtered_R()

  def filter_rows(weights_RV):
    keep_RV = keep_mask(weights_RV, params) | ~filtered_R[:, None]
    return jnp.where(keep_RV, weights_RV, 0.0)

  weights_RV = jax.lax.cond(jnp.any(filtered_R), filter_rows, lambda w: w, weights_RV)
  return weights_RV, top_R


def probabilities(logits_RV: jax.Array, params: SamplingParams) -> jax.Array:
  """The distribution each row is drawn from, f32[R, V]; removed ids are exactly 0."""
  weights_RV, _ = unnormalised(logits_RV, params)
  sampled_RV = weights_RV / jnp.sum(weights_RV, -1, keepdims=True)
  argmax_RV = jax.nn.one_hot(jnp.argmax(logits_RV, -1), logits_RV.shape[-1])
  return jnp.where(params.temperature_R[:, None] == 0, argmax_RV, sampled_RV)


def inverse_cdf(weights_RV: jax.Array, uniform_R: jax.Array) -> jax.Array:
  """The id at which the running sum of the weights first exceeds uniform * total.

  Two levels, blocks and then ids within one block, so that a row costs one pass over the
  vocabulary and one random number. An id of weight 0 is never returned.
  """
  rows, num_vocab = weights_RV.shape
  padding = -num_vocab % _CDF_BLOCK
  blocks = jnp.pad(weights_RV, ((0, 0), (0, padding))).reshape(rows, -1, _CDF_BLOCK)
  block_sums = jnp.sum(blocks, axis=-1)
  running = jnp.cumsum(block_sums, axis=-1)
  target_R = uniform_R * running[:, -1]
  block_R = _first_above(running, block_sums, target_R)
  before_R = jnp.take_along_axis(running - block_sums, block_R[:, None], axis=-1)[:, 0]
  inside = jnp.take_along_axis(blocks, block_R[:, None, None], axis=1)[:, 0]
  offset_R = _first_above(jnp.cumsum(inside, axis=-1), inside, target_R - before_R)
  # Weights that are not numbers have no first sum above; stay inside the vocabulary.
  return jnp.minimum(block_R * _CDF_BLOCK + offset_R, num_vocab - 1).astype(jnp.int32)


def _first_above(running: jax.Array, weights: jax.Array, target_R: jax.Array) -> jax.Array:
  """First index of positive weight with running > target; the last positive one if none.

  "None" happens by rounding only: the sums of two levels differ in the last bit.
  """
  positive = weights > 0
  above = positive & (running > target_R[:, None])
  last = weights.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
  return jnp.where(jnp.any(above, axis=-1), jnp.argmax(above, axis=-1), last)


def sample(logits_RV: jax.Array, keys_R: jax.Array, params: SamplingParams):
  """Draws one token a row.

  Args:
    logits_RV: next-token logits.
    keys_R: one key a row; a row's token depends on its own logits and key only.
    params: settings of each row.

  Returns:
    tokens i32[R], and their log-probabilities f32[R] under the distribution that they
    were drawn from (0 for a greedy row).
  """
  weights_RV, top_R = unnormalised(logits_RV, params)
  uniform_R = jax.vmap(jax.random.uniform)(keys_R)
  greedy_R = params.temperature_R == 0
  tokens_R = inverse_cdf(weights_RV, uniform_R)
  # Another pass over the vocabulary, which only a greedy row needs.
  tokens_R = jax.lax.cond(
    jnp.any(greedy_R),
    lambda drawn_R: jnp.where(greedy_R, jnp.argmax(logits_RV, axis=-1).astype(jnp.int32), drawn_R),
    lambda drawn_R: drawn_R,
    tokens_R,
  )
  z_R = jnp.take_along_axis(logits_RV, tokens_R[:, None], -1)[:, 0].astype(jnp.float32)
  z_R = z_R / jnp.where(greedy_R, 1.0, params.temperature_R)
  logprobs_R = z_R - top_R - jnp.log(jnp.sum(weights_RV, axis=-1))
  return tokens_R, jnp.where(greedy_R, 0.0, logprobs_R)
