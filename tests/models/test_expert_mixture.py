"""Experts with a capacity, and on a mesh: against the dropless form on one device."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ptjax.models import decoder
from ptjax.models.config import DecoderConfig, MoeConfig
from ptjax.models.experts import Experts, Told
from ptjax.models.lora import LoraConfig, adapt, adapter_axes, init_adapters
from ptjax.models.matrices import is_matrix
from ptjax.models.mixture import capacity, places
from ptjax.models.quantize import quantize_blocks, quantized_axes
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Constrainer, Rules, tree_shardings

SHAPE = DecoderConfig(
  vocab_size=40, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24,
  remat="none", moe=MoeConfig(num_experts=4, top_k=2, d_ff=32),
)  # fmt: skip
CLAMPED = dataclasses.replace(
  SHAPE, moe=MoeConfig(num_experts=4, top_k=2, d_ff=32, biases=True, swiglu_limit=0.5)
)


def random_params(config):
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), decoder.param_shapes(config)
  )


def rows(padding: int = 0):
  tokens_BT = np.random.default_rng(0).integers(40, size=(4, 6)).astype(np.int32)
  index_BT = np.broadcast_to(np.arange(6 + padding, dtype=np.int32), (4, 6 + padding))
  tokens_BT, real_BT = (np.pad(x, ((0, 0), (0, padding))) for x in (tokens_BT, tokens_BT * 0 + 1))
  return decoder.Packed(tokens_BT, index_BT, real_BT, real_BT * 0)


def value_and_grad(config, constrain=decoder.unconstrained, packed=None):
  """Of a scalar of the hidden states of real tokens, and the share of dropped choices."""
  packed = rows() if packed is None else packed

  def loss(params):
    network = decoder.bind(config, params)
    hidden_BTD, routed = network(packed, constrain=constrain, keep_routing=True)
    return jnp.mean(jnp.sin(hidden_BTD[:, :6])), routed.dropped

  return jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_places_by_hand():
  """Two places: token 2's first choice comes before token 0's second one."""
  experts_TX = jnp.asarray([[0, 1], [1, 0], [0, 1]])
  np.testing.assert_array_equal(places(experts_TX, None, 2, 2), [[0, 1], [0, -1], [1, -1]])
  valid_T = jnp.asarray([False, True, True])
  np.testing.assert_array_equal(places(experts_TX, valid_T, 2, 2), [[-1, -1], [0, 1], [0, 1]])


def test_capacity_is_a_multiple_of_an_even_load():
  assert capacity(24, dataclasses.replace(SHAPE, capacity_factor=1.25)) == 15
  assert capacity(1, dataclasses.replace(SHAPE, capacity_factor=0.1)) == 1
  with pytest.raises(ValueError, match="capacity_factor 0 must be > 0"):
    dataclasses.replace(SHAPE, capacity_factor=0)


@pytest.mark.parametrize("config", [SHAPE, CLAMPED], ids=["plain", "clamped"])
def test_enough_capacity_is_dropless(config):
  params = random_params(config)
  want = value_and_grad(config)(params)
  ample = dataclasses.replace(config, capacity_factor=2.0)  # E / X: all tokens fit one expert
  got = value_and_grad(ample)(params)
  jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0, atol=1e-5), got, want)


def test_choices_beyond_the_capacity_add_nothing():
  config = dataclasses.replace(SHAPE, capacity_factor=0.5)
  graph, state = nnx.split(Experts(config, nnx.Rngs(0), num_layers=1))
  block = nnx.merge(graph, jax.tree.map(lambda x: x[0], state))
  x_TD = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float32)
  got_TD, routed = block(x_TD, config)
  place_TX = np.asarray(places(routed.experts_TX, None, 4, 2))
  assert routed.dropped == (place_TX < 0).sum() > 0
  # Each token by itself, without the choices that found no place.
  for t in range(8):
    alone = dataclasses.replace(SHAPE, capacity_factor=None)
    whole, _ = block(x_TD[t : t + 1], alone)
    if (place_TX[t] >= 0).all():
      np.testing.assert_allclose(got_TD[t], whole[0], rtol=1e-5, atol=1e-6)
    elif (place_TX[t] < 0).all():
      np.testing.assert_array_equal(got_TD[t], np.zeros(16))
    else:
      assert float(jnp.abs(got_TD[t] - whole[0]).max()) > 1e-4


def test_padding_takes_no_place():
  config = dataclasses.replace(SHAPE, capacity_factor=1.0)
  params = random_params(config)
  (_, few), _ = value_and_grad(config)(params)
  # As many places as before, though there are twice as many positions.
  padded = dataclasses.replace(config, capacity_factor=0.5)
  (value, dropped), _ = value_and_grad(padded, packed=rows(padding=6))(params)
  (want, _), _ = value_and_grad(config)(params)
  assert few.sum() > 0
  np.testing.assert_array_equal(dropped, few)
  assert float(value) == pytest.approx(float(want), abs=1e-5)


def axes_of(params, config):
  if any(is_matrix(x) for x in jax.tree.leaves(params, is_leaf=is_matrix)):
    return quantized_axes(config)
  return decoder.logical_axes(config)


@pytest.mark.parametrize("kind", ["plain", "clamped", "quantised", "adapted", "capacity"])
def test_sharded_equals_unsharded(kind):
  """On experts, their width and tokens; plain weights, biases, int8, adapters, a capacity."""
  config = CLAMPED if kind == "clamped" else SHAPE
  if kind == "capacity":
    config = dataclasses.replace(SHAPE, capacity_factor=1.0)
  params = random_params(config)
  mesh, rules = make_mesh(MeshConfig(fsdp=2, tensor=2, expert=2)), Rules()
  join = lambda trained, base: trained  # noqa: E731
  base, trained, axes = {}, params, decoder.logical_axes(config)
  if kind in ("quantised", "adapted"):
    lora = LoraConfig(rank=3, targets=("*/mlp/*",))
    base = quantize_blocks(params, "int8") if kind == "quantised" else params
    rng = np.random.default_rng(1)
    trained = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), init_adapters(lora, config)
    )
    axes = adapter_axes(lora, config)
    join = lambda trained, base: adapt(base, trained, lora.scale)  # noqa: E731
  base_placed = base
  if base:
    base_placed = jax.device_put(base, tree_shardings(rules, mesh, axes_of(base, config), base))
  placed = jax.device_put(trained, tree_shardings(rules, mesh, axes, trained))

  def of(constrain):
    def loss(trained, base):
      network = decoder.bind(config, join(trained, base))
      return jnp.mean(jnp.sin(network(rows(), constrain=constrain)))

    return jax.jit(jax.value_and_grad(loss))

  want = of(decoder.unconstrained)(trained, base)
  got = of(Constrainer(rules, mesh))(placed, base_placed)
  jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0, atol=1e-5), got, want)


def gathered(config, mesh, rules) -> list[tuple[int, ...]]:
  """Shapes of all results of all-gathers in the compiled loss and gradient."""
  params = random_params(config)
  placed = jax.device_put(params, tree_shardings(rules, mesh, decoder.logical_axes(config), params))
  program = value_and_grad(config, Constrainer(rules, mesh)).lower(placed).compile().as_text()
  found = re.findall(r"= \(?f32\[([\d,]+)\][^=]*? all-gather(?:-start)?\(", program)
  return [tuple(map(int, shape.split(","))) for shape in found]


def test_no_device_gathers_the_experts():
  """Weights are gathered over fsdp, of the device's own expert; never over the experts' axis."""
  config = dataclasses.replace(SHAPE, moe=dataclasses.replace(SHAPE.experts, d_ff=64))
  shapes = gathered(config, make_mesh(MeshConfig(fsdp=2, expert=4)), Rules())
  assert shapes
  largest = max(np.prod(shape) for shape in shapes)
  assert largest < 4 * 16 * 64, shapes  # one matrix of all experts of a layer


def test_tokens_and_experts_need_axes_of_their_own():
  mesh = make_mesh(MeshConfig(fsdp=2, expert=4))
  constrain = Constrainer(Rules(batch=("expert",)), mesh)
  graph, state = nnx.split(Experts(SHAPE, nnx.Rngs(0), num_layers=1))
  block = nnx.merge(graph, jax.tree.map(lambda x: x[0], state))
  with pytest.raises(ValueError, match="split tokens over axes of the experts"):
    block(jnp.zeros((8, 16)), SHAPE, Told(constrain=constrain, axes=("batch",)))
