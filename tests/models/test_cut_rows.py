"""The decoder over rows that are cut: what it computes again, and what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.models.feedforward import in_chunks
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Constrainer, Rules

TOY = DecoderConfig(
  vocab_size=32, d_model=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=16
)


def constrain(rules=None) -> Constrainer:
  mesh = make_mesh(MeshConfig(fsdp=1, context=2, tensor=2), jax.devices()[:4])
  return Constrainer(rules or Rules(heads=(), kv_heads=()), mesh)


def gradient_equations(model: DecoderConfig, rules=None, **call):
  params = jax.eval_shape(lambda: decoder.init_params(model, jax.random.key(0)))
  ids = [jax.ShapeDtypeStruct((1, 15), jnp.int32)] * 4

  def total(params, *ids):
    packed = decoder.Packed(*ids)
    return jnp.sum(decoder.bind(model, params)(packed, constrain=constrain(rules), **call))

  return jax.make_jaxpr(jax.grad(total))(params, *ids).jaxpr


def count(jaxpr, primitive: str) -> int:
  inner = sum(count(sub, primitive) for e in jaxpr.eqns for sub in jaxprs_in_params(e.params))
  return inner + sum(e.primitive.name == primitive for e in jaxpr.eqns)


def test_remat_keeps_what_a_ring_brought():
  hops = {
    remat: count(gradient_equations(dataclasses.replace(TOY, remat=remat)), "ppermute")
    for remat in ("none", "attention", "full")
  }
  assert 0 < hops["attention"] == hops["none"] < hops["full"]


@pytest.mark.parametrize(
  ("changes", "call"), [({"merge_rows": True}, {}), ({}, {"keep_kv": True})], ids=["merge", "keep"]
)
def test_what_needs_whole_rows_is_refused(changes, call):
  with pytest.raises(ValueError, match="rows are cut over 2 devices"):
    gradient_equations(dataclasses.replace(TOY, **changes), **call)


def test_rules_that_part_queries_from_their_keys_are_refused():
  with pytest.raises(ValueError, match=r"heads=.'tensor',. and kv_heads=..: query heads"):
    gradient_equations(TOY, Rules(kv_heads=()))


def test_rows_are_cut_along_one_axis():
  with pytest.raises(ValueError, match="one mesh axis at most"):
    gradient_equations(TOY, Rules(length=("context", "data")))


def test_a_function_of_tokens_by_pieces():
  """Two shards of 15 tokens by 4: the last piece is not full. Value and gradient."""
  x, w = (jax.random.normal(jax.random.key(n), s) for n, s in enumerate(((2, 30, 3), (3, 3))))

  def total(by_pieces, x, w):
    function = lambda x: jnp.tanh(x @ w)  # noqa: E731
    out = in_chunks(function, x, 4, 2) if by_pieces else function(x)
    return jnp.sum(jnp.sin(out + jnp.arange(30)[:, None]))

  got, want = (
    jax.jit(jax.value_and_grad(functools.partial(total, by), argnums=(0, 1)))(x, w)
    for by in (True, False)
  )
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
