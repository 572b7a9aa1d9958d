"""Heads on the decoder's hidden states: next-token logits and scalar values."""

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.kernels.scores import cap
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.layers import product, project


def logits(params: Params, hidden: jax.Array, c: DecoderConfig) -> jax.Array:
  """Next-token logits f32[..., V] from hidden[..., D], tied or not, soft-capped or not."""
  return cap(_products(params, hidden, c), c.logit_cap)


def _products(params: Params, hidden: jax.Array, c: DecoderConfig) -> jax.Array:
  if "lm_head" in params:
    return product(hidden, params["lm_head"]["w"], c)
  table_VD = params["embed"]["table"]
  if c.out_first:  # as the table always is
    return product(hidden, table_VD, c)
  lead = "ABC"[: hidden.ndim - 1]
  return project(f"{lead}D,VD->{lead}V", hidden, table_VD, c.matmul_dtype)


def init_value_head(d_model: int) -> dict[str, jax.Array]:
  """A value head that starts at 0 everywhere: the first advantages are the returns."""
  return {"w": jnp.zeros((d_model,), jnp.float32), "b": jnp.zeros((), jnp.float32)}


def values(head: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
  """State values f32[...] from hidden[..., D]."""
  return hidden.astype(jnp.float32) @ head["w"] + head["b"]


def init_reward_head(
  key: jax.Array, d_model: int, members: int, domains: int
) -> dict[str, jax.Array]:
  """Scalar heads of a reward model, one for each member of the ensemble (M) and domain (G).

  w_MGD is normal with variance 1 / (D + 1), b_MG is 0: members must differ from the start.
  Source: Stiennon et al. 2020, appendix C.
  """
  w_MGD = jax.random.normal(key, (members, domains, d_model)) * (d_model + 1) ** -0.5
  return {"w": w_MGD, "b": jnp.zeros((members, domains), jnp.float32)}


def domain_scores(
  head: dict[str, jax.Array], hidden_PD: jax.Array, domain_P: jax.Array | np.ndarray
) -> jax.Array:
  """scores_PM f32: every member's score of each state, by the head of the state's domain."""
  w_MPD, b_MP = head["w"][:, domain_P], head["b"][:, domain_P]
  return jnp.einsum("PD,MPD->PM", hidden_PD.astype(jnp.float32), w_MPD) + b_MP.T
