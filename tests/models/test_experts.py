"""Routing by hand; the grouped products against one token and one expert at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptjax.models import decoder
from ptjax.models.config import DecoderConfig, MoeConfig
from ptjax.models.experts import Experts, route
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules, constrainer, tree_shardings

SHAPE = DecoderConfig(
  vocab_size=40, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24,
  remat="none", moe=MoeConfig(num_experts=4, top_k=2, d_ff=12),
)  # fmt: skip


def test_softmax_routing_by_hand():
  logits = jnp.log(jnp.asarray([[1.0, 4.0, 2.0, 1.0]]))
  experts, weights = route(logits, MoeConfig(4, 2, 8, normalize=False))
  np.testing.assert_array_equal(experts, [[1, 2]])
  np.testing.assert_allclose(weights, [[0.5, 0.25]], rtol=1e-6)
  _, weights = route(logits, MoeConfig(4, 2, 8, weight_scale=3.0))
  np.testing.assert_allclose(weights, [[2.0, 1.0]], rtol=1e-6)


def test_sigmoid_routing_by_hand():
  """Groups (0, 1), (2, 3): the correction picks the second one, the weights do not know it."""
  scores = np.asarray([[0.9, 0.1, 0.5, 0.25]])
  logits = jnp.asarray(np.log(scores / (1 - scores)), jnp.float32)
  m = MoeConfig(4, 1, 8, scoring="sigmoid", normalize=False, num_groups=2, top_groups=1)
  experts, weights = route(logits, m, jnp.zeros(4))
  np.testing.assert_array_equal(experts, [[0]])  # groups 1.0 and 0.75
  experts, weights = route(logits, m, jnp.asarray([0.0, 0.0, 0.0, 0.3]))
  np.testing.assert_array_equal(experts, [[3]])  # groups 1.0 and 1.05; then 0.55 beats 0.5
  np.testing.assert_allclose(weights, [[0.25]], rtol=1e-6)


def one_by_one(block, x_TD, m):
  """The mixture in float64, from the routing's own choice."""
  w = {name: np.asarray(value[...], float) for name, value in vars(block).items()
       if isinstance(value, nnx.Param)}  # fmt: skip
  logits = x_TD.astype(float) @ w["router"] + w.get("router_bias", 0)
  experts, weights = route(jnp.asarray(logits, jnp.float32), m, w.get("correction"))
  out = np.zeros(x_TD.shape)
  for t, (chosen, share) in enumerate(zip(np.asarray(experts), np.asarray(weights), strict=True)):
    for e, weight in zip(chosen, share, strict=True):
      gate = x_TD[t] @ w["e_gate"][e] + (w["gate_bias"][e] if m.biases else 0)
      up = x_TD[t] @ w["e_up"][e] + (w["up_bias"][e] if m.biases else 0)
      if m.swiglu_limit is None:
        hidden = gate / (1 + np.exp(-gate)) * up
      else:
        gate, up = np.minimum(gate, m.swiglu_limit), np.clip(up, -m.swiglu_limit, m.swiglu_limit)
        hidden = (up + 1) * gate / (1 + np.exp(-m.swiglu_alpha * gate))
      out[t] += weight * (hidden @ w["e_down"][e] + (w["down_bias"][e] if m.biases else 0))
  return out


@pytest.mark.parametrize(
  "m",
  [SHAPE.experts, MoeConfig(num_experts=5, top_k=3, d_ff=12, biases=True, swiglu_limit=0.2)],
  ids=["plain", "clamped"],
)
def test_grouped_products_equal_loops(m):
  config = dataclasses.replace(SHAPE, moe=m)
  graph, state = nnx.split(Experts(config, nnx.Rngs(0), num_layers=1))
  rng = np.random.default_rng(0)
  state = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape[1:]), jnp.float32), state)
  block = nnx.merge(graph, state)
  x_TD = rng.normal(size=(7, config.d_model)).astype(np.float32)
  want = one_by_one(block, x_TD, m)
  np.testing.assert_allclose(block(x_TD, config)[0], want, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(block(x_TD[:1], config)[0], want[:1], rtol=1e-4, atol=1e-4)


def test_sharded_experts_equal_unsharded():
  """Loss and gradients on a mesh with an expert axis of 4."""
  params = decoder.init_params(SHAPE, jax.random.key(0))
  tokens_BT = np.random.default_rng(0).integers(40, size=(4, 6)).astype(np.int32)
  index_BT = np.broadcast_to(np.arange(6, dtype=np.int32), (4, 6))
  packed = decoder.Packed(tokens_BT, index_BT, np.ones_like(tokens_BT), np.zeros_like(tokens_BT))
  mesh, rules = make_mesh(MeshConfig(fsdp=2, expert=4)), Rules()
  shardings = tree_shardings(rules, mesh, decoder.logical_axes(SHAPE), params)
  assert shardings["layers"]["mlp"]["e_up"].shard_shape((2, 4, 16, 12)) == (2, 1, 8, 12)

  def value_and_grad(constrain):
    def loss(params):
      return jnp.mean(jnp.sin(decoder.bind(SHAPE, params)(packed, constrain=constrain)))

    return jax.jit(jax.value_and_grad(loss))

  want = value_and_grad(decoder.unconstrained)(params)
  got = value_and_grad(constrainer(rules, mesh))(jax.device_put(params, shardings))
  jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0, atol=1e-5), got, want)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"top_k": 5}, "top_k 5 must be 1 to num_experts 4"),
    ({"scoring": "tanh"}, "scoring is 'tanh'"),
    ({"num_groups": 3}, "4 experts, 3 groups"),
    ({"num_groups": 4, "top_groups": 1}, "top_k 2 experts do not fit in 1 groups of 1"),
  ],
)
def test_config_errors(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(SHAPE.experts, **change)
