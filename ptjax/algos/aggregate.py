"""Normalisation: one weight per trajectory, computed once from the counts of the global batch.

  loss = sum over tokens of weight * mask * loss_token

The weights are made on the host before the batch is packed, split into micro-batches or sharded.
Partial sums then simply add up, and no way of cutting the batch can change the gradient.

Letters: E trajectories (episodes).
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ptjax.core.masked import fill, masked_sum

AGGREGATIONS = (
  "token_mean",
  "seq_mean_token_mean",
  "seq_mean_token_sum_norm",
  "fixed",
  "domain_balanced",
)


def token_weights(
  mode: str,
  lengths_E: Sequence[int] | np.ndarray,
  *,
  l_max: int | None = None,
  constant: float | None = None,
  domains_E: Sequence[str] | None = None,
  shares: Mapping[str, float] | None = None,
) -> np.ndarray:
  """Weight of each trained token of each trajectory.

  With n_i the trained tokens of trajectory i, N their sum and B the number of trajectories with
  n_i > 0:

    token_mean               1 / N            every token alike (DAPO)
    seq_mean_token_mean      1 / (n_i B)      every trajectory alike (GRPO)
    seq_mean_token_sum_norm  1 / (B l_max)    no length bias (Dr. GRPO)
    fixed                    1 / constant
    domain_balanced          s_d / N_d        each domain alike, whatever its length

  N_d are the tokens of the trajectory's domain d, and s_d its share: `shares[d]` divided by the sum
  over the domains that have tokens in this batch. A token_mean gives a domain of 10,000-token
  answers 99% of the weight beside one of 100-token answers.

  Args:
    mode: one of `AGGREGATIONS`.
    lengths_E: n_i of every trajectory of the global batch: all hosts, all micro-batches.
    l_max: the length that seq_mean_token_sum_norm divides by, usually the response limit.
    constant: the divisor of `fixed`.
    domains_E: domain of every trajectory, for domain_balanced.
    shares: positive weight of every domain, as in the mixture, for domain_balanced.

  Returns:
    float64[E]; 0 for a trajectory without trained tokens.

  Raises:
    ValueError: unknown mode, negative length, a missing or non-positive l_max or constant, or a
      domain without a share.
  """
  lengths_E = np.asarray(lengths_E, np.int64)
  if np.any(lengths_E < 0):
    raise ValueError(f"lengths must be >= 0, got {lengths_E.min()}")
  num_tokens = max(lengths_E.sum(), 1)
  num_sequences = max(np.count_nonzero(lengths_E), 1)
  match mode:
    case "token_mean":
      weights_E = np.full(lengths_E.shape, 1 / num_tokens)
    case "seq_mean_token_mean":
      weights_E = 1 / (np.maximum(lengths_E, 1) * num_sequences)
    case "seq_mean_token_sum_norm":
      weights_E = np.full(lengths_E.shape, 1 / (num_sequences * _positive("l_max", l_max)))
    case "fixed":
      weights_E = np.full(lengths_E.shape, 1 / _positive("constant", constant))
    case "domain_balanced":
      weights_E = _domain_weights(lengths_E, domains_E, shares)
    case _:
      raise ValueError(f"unknown aggregation {mode!r}; choose one of {', '.join(AGGREGATIONS)}")
  return np.where(lengths_E > 0, weights_E, 0.0)


def _domain_weights(lengths_E, domains_E, shares) -> np.ndarray:
  if domains_E is None or shares is None or len(domains_E) != len(lengths_E):
    raise ValueError(
      f"domain_balanced needs the domain of each of the {len(lengths_E)} trajectories and the "
      f"shares of the domains, got domains {domains_E} and shares {shares}"
    )
  tokens: dict[str, int] = {}
  for domain, n in zip(domains_E, lengths_E.tolist(), strict=True):
    tokens[domain] = tokens.get(domain, 0) + n
  present = {domain for domain, n in tokens.items() if n > 0}
  for domain in present:
    if not shares.get(domain, 0) > 0:
      raise ValueError(f"domain {domain!r} has no share > 0; shares are {dict(shares)}")
  # Sorted: a sum in the order of a set would depend on the hash seed in its last bit.
  total = sum(shares[domain] for domain in sorted(present))
  by_domain = {d: shares[d] / total / tokens[d] for d in present}
  return np.asarray([by_domain.get(domain, 0.0) for domain in domains_E], np.float64)


def _positive(name: str, value: float | None) -> float:
  if value is None or not value > 0:
    raise ValueError(f"{name} must be a number > 0 for this aggregation, got {value}")
  return value


def weighted_sum(loss_tokens, weights, mask) -> jax.Array:
  """sum(weights * mask * loss_tokens): this part's share of the loss of the global batch.

  All three have one shape; `weights` holds `token_weights` on the tokens of each trajectory.
  """
  return masked_sum(fill(loss_tokens, mask) * weights, mask)
