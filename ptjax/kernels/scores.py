"""How attention scores are made from the products of queries and keys."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Scores:
  """score = cap tanh(scale q.k / cap), or scale q.k where there is no cap.

  Attributes:
    scale: None for 1 / sqrt(H).
    cap: soft cap (Gemma 2, section 2).
  """

  scale: float | None = None
  cap: float | None = None

  def scale_of(self, head_dim: int) -> float:
    return head_dim**-0.5 if self.scale is None else self.scale


PLAIN = Scores()


def cap(scores: jax.Array, limit: float | None) -> jax.Array:
  """limit * tanh(scores / limit), or the scores themselves where there is no limit."""
  return scores if limit is None else limit * jnp.tanh(scores / limit)
