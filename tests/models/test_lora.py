"""Adapters: nothing at step 0, then exactly W + scale A B, on every matrix of a model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig, LatentConfig, MoeConfig
from ptjax.models.lora import A, B, LoraConfig, adapt, adapter_axes, init_adapters
from ptjax.models.matrices import Adapted, dense, densify
from ptjax.models.quantize import quantize_blocks
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules, tree_shardings

LLAMA = DecoderConfig(
  vocab_size=40, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24,
  remat="none", tie_embeddings=False,
)  # fmt: skip
DEEPSEEK = dataclasses.replace(
  LLAMA,
  head_dim=12,
  num_kv_heads=4,
  latent=LatentConfig(query_rank=6, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8),
  moe=MoeConfig(4, 2, 12, scoring="sigmoid", shared_d_ff=8, first_dense=1),
)
LORA = LoraConfig(rank=3, alpha=6.0, targets=("*/attn/*", "*/mlp/*", "lm_head/w"))


def random_params(model: DecoderConfig):
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, x.shape[-1] ** -0.5, x.shape), jnp.float32),
    decoder.param_shapes(model),
  )


def rows(model: DecoderConfig) -> decoder.Packed:
  tokens_BT = np.random.default_rng(0).integers(model.vocab_size, size=(2, 6)).astype(np.int32)
  index_BT = np.broadcast_to(np.arange(6, dtype=np.int32), tokens_BT.shape)
  return decoder.Packed(tokens_BT, index_BT, np.ones_like(tokens_BT), np.zeros_like(tokens_BT))


@functools.partial(jax.jit, static_argnums=0)
def logits(model: DecoderConfig, params) -> jax.Array:
  hidden_BTD = decoder.bind(model, params)(rows(model))
  return heads.logits(params, hidden_BTD.reshape(-1, model.d_model), model)


def stirred(adapters):
  """Adapters as training would leave them: B is no longer 0."""
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), adapters)


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
def test_the_network_of_step_0_is_the_base_bit_for_bit(model):
  params = random_params(model)
  adapted = adapt(params, init_adapters(LORA, model), LORA.scale)
  assert np.asarray(logits(model, adapted)).tobytes() == np.asarray(logits(model, params)).tobytes()


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
def test_merged_equals_adapted(model):
  params = random_params(model)
  adapted = adapt(params, stirred(init_adapters(LORA, model)), LORA.scale)
  merged = densify(adapted)
  decoder.check_params(model, merged)
  want = logits(model, adapted)
  assert float(jnp.abs(want - logits(model, params)).max()) > 0.1  # the adapters do something
  np.testing.assert_allclose(logits(model, merged), want, rtol=0, atol=1e-5)


def test_merging_by_hand():
  """One input axis, rank 1: W + 2 a b."""
  w = Adapted(jnp.asarray([[1.0, 2.0]]), jnp.asarray([[3.0]]), jnp.asarray([[10.0, 20.0]]), 2.0)
  np.testing.assert_array_equal(dense(w), [[61.0, 122.0]])
  # Two input axes [2, 1] and one output: the rank meets the last axis of a and the first of b.
  w = Adapted(
    jnp.zeros((2, 1, 1)),
    jnp.asarray([[[1.0, 0.0]], [[0.0, 1.0]]]),
    jnp.asarray([[5.0], [7.0]]),
    1.0,
  )
  np.testing.assert_array_equal(dense(w), [[[5.0]], [[7.0]]])


def test_every_target_trains_and_nothing_else():
  params = random_params(LLAMA)
  start = init_adapters(LORA, LLAMA)

  def loss(adapters):
    return jnp.mean(jnp.sin(logits(LLAMA, adapt(params, adapters, LORA.scale))))

  grads = jax.jit(jax.grad(loss))(start)
  assert jax.tree.structure(grads) == jax.tree.structure(start)
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    moves = float(jnp.abs(grad).max()) > 0
    # B is 0 at first, so that A has no gradient yet.
    assert moves == (path[-1].key == B), jax.tree_util.keystr(path)
  grads = jax.jit(jax.grad(loss))(stirred(start))
  assert all(float(jnp.abs(g).max()) > 0 for g in jax.tree.leaves(grads))


def test_the_gradient_is_that_of_the_merged_matrices():
  """d/dB of the adapted network equals scale A^T dW of the merged one."""
  params = random_params(LLAMA)
  config = dataclasses.replace(LORA, targets=("layers/mlp/w_down",))
  start = stirred(init_adapters(config, LLAMA))

  def of_params(params):
    return jnp.mean(jnp.sin(logits(LLAMA, params)))

  got = jax.grad(lambda a: of_params(adapt(params, a, config.scale)))(start)
  dw_LFD = jax.grad(of_params)(densify(adapt(params, start, config.scale)))["layers"]["mlp"][
    "w_down"
  ]
  want = config.scale * jnp.einsum("LFr,LFD->LrD", start["layers"]["mlp"]["w_down"][A], dw_LFD)
  np.testing.assert_allclose(got["layers"]["mlp"]["w_down"][B], want, rtol=0, atol=1e-5)


def test_scale_by_rank_or_its_root():
  assert LoraConfig(rank=4, alpha=8.0).scale == 2.0
  assert LoraConfig(rank=4, alpha=8.0, rank_stabilized=True).scale == 4.0


def test_a_draw_depends_on_seed_and_path_alone():
  few = init_adapters(dataclasses.replace(LORA, targets=("*/wq",)), LLAMA)
  assert list(few["layers"]["attn"]) == ["wq"]
  drawn = init_adapters(LORA, LLAMA)["layers"]["attn"]
  np.testing.assert_array_equal(few["layers"]["attn"]["wq"][A], drawn["wq"][A])
  assert not np.array_equal(drawn["wk"][A], drawn["wv"][A])
  other = init_adapters(dataclasses.replace(LORA, seed=1), LLAMA)["layers"]["attn"]
  assert not np.array_equal(other["wq"][A], drawn["wq"][A])
  spread = float(jnp.std(init_adapters(dataclasses.replace(LORA, rank=64), LLAMA)
                         ["layers"]["mlp"]["w_down"][A]))  # fmt: skip
  assert spread == pytest.approx(24**-0.5, rel=0.1)


def test_adapters_lie_where_their_matrix_lies():
  axes = adapter_axes(LORA, DEEPSEEK)
  assert axes["layers"]["mlp"]["e_up"] == {
    A: ("layers", "expert", "embed", None),
    B: ("layers", "expert", None, "expert_ff"),
  }
  assert axes["layers"]["attn"]["wo"] == {
    A: ("layers", "heads", "head", None),
    B: ("layers", None, "embed"),
  }
  mesh = make_mesh(MeshConfig(fsdp=2, tensor=4))
  shapes = jax.eval_shape(lambda: init_adapters(LORA, LLAMA))
  where = tree_shardings(Rules(kv_heads=()), mesh, adapter_axes(LORA, LLAMA), shapes)
  assert where["layers"]["attn"]["wq"][A].shard_shape((2, 16, 3)) == (2, 8, 3)
  assert where["layers"]["attn"]["wq"][B].shard_shape((2, 3, 4, 8)) == (2, 3, 1, 8)


def test_adapters_on_a_quantised_base():
  params = quantize_blocks(random_params(LLAMA), "int8")
  adapters = init_adapters(LORA, LLAMA)
  at_start = logits(LLAMA, adapt(params, adapters, LORA.scale))
  np.testing.assert_allclose(at_start, logits(LLAMA, params), rtol=0, atol=1e-6)
  adapted = adapt(params, stirred(adapters), LORA.scale)
  np.testing.assert_allclose(
    logits(LLAMA, adapted), logits(LLAMA, densify(adapted)), rtol=0, atol=1e-5
  )


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"rank": 0}, "lora.rank 0 must be >= 1"),
    ({"alpha": 0.0}, "lora.alpha 0.0 must be > 0"),
    ({"targets": ()}, "lora.targets is empty"),
  ],
)
def test_senseless_configurations_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(LORA, **change)


@pytest.mark.parametrize("pattern", ["*/attn/q_proj", "embed/table", "*/mlp/router"])
def test_a_pattern_without_a_matrix_is_refused(pattern):
  with pytest.raises(ValueError, match=r"no matrix matches .*layers/attn/wq"):
    init_adapters(dataclasses.replace(LORA, targets=(pattern,)), DEEPSEEK)
