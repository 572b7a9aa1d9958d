"""The decoder: its variants agree, and packing changes nothing that a sequence sees."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.experience.packing import PackConfig, pack
from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.forward import action_logprobs

TINY = DecoderConfig(
  vocab_size=40, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
)
PARAMS = decoder.init_params(TINY, jax.random.key(0))


def one_document(tokens_BT):
  tokens_BT = jnp.asarray(tokens_BT)
  positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
  ones, zeros = jnp.ones_like(tokens_BT), jnp.zeros_like(tokens_BT)
  return decoder.Packed(tokens_BT, positions_BT, ones, zeros)


@functools.partial(jax.jit, static_argnums=0)
def hidden(config, params, packed):
  return decoder.bind(config, params)(packed)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_grads(config, params, packed):
  def loss(params):
    hidden_BTD = decoder.bind(config, params)(packed)
    logits = heads.logits(params, hidden_BTD.reshape(-1, config.d_model), config)
    logprobs = jax.nn.log_softmax(logits)
    return -jnp.mean(logprobs[jnp.arange(len(logits)), packed.tokens_BT.reshape(-1)])

  return jax.value_and_grad(loss)(params)


def random_tokens(shape, seed=0):
  return np.random.default_rng(seed).integers(TINY.vocab_size, size=shape).astype(np.int32)


@functools.cache
def plain():
  return loss_and_grads(
    dataclasses.replace(TINY, remat="none"), PARAMS, one_document(random_tokens((2, 9)))
  )


@pytest.mark.parametrize(
  "change",
  [
    {"remat": "dots"},
    {"remat": "full"},
    {"remat": "offload"},
    {"remat": "attention"},
    {"merge_rows": True, "remat": "none"},
    {"merge_rows": True, "remat": "dots"},
    {"attention": "reference"},
    {"ff_parts": 1},
    {"ff_parts": 3},
  ],
  ids=str,
)
def test_variants_equal_the_plain_decoder(change):
  packed = one_document(random_tokens((2, 9)))
  value, grads = loss_and_grads(dataclasses.replace(TINY, **change), PARAMS, packed)
  want, want_grads = plain()
  np.testing.assert_allclose(value, want, rtol=1e-6)
  jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0, atol=1e-5), grads, want_grads)
  assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads))


def test_bfloat16_is_close_to_float32():
  narrow = dataclasses.replace(TINY, matmul_dtype="bfloat16", activation_dtype="bfloat16")
  value, grads = loss_and_grads(narrow, PARAMS, one_document(random_tokens((2, 9))))
  want, want_grads = plain()
  np.testing.assert_allclose(value, want, rtol=2e-2)
  for got, expected in zip(jax.tree.leaves(grads), jax.tree.leaves(want_grads), strict=True):
    assert got.dtype == jnp.float32
    assert np.linalg.norm(got - expected) < 0.1 * np.linalg.norm(expected)


def trajectory(prompt, completion, mask=None, group=0):
  tokens = np.asarray([*prompt, *completion], np.int32)
  acted = np.asarray([0] * len(prompt) + list(mask or [1] * len(completion)), bool)
  return Trajectory(
    tokens=tokens,
    action_mask=acted,
    behavior_logprobs=np.zeros(len(tokens), np.float32),
    policy_versions=np.where(acted, 0, -1).astype(np.int32),
    turn_starts=(0, len(prompt)),
    domain="test",
    group=group,
    seed=0,
    rewards={"": 0.0},
    outcome=Outcome.SCORED,
    finish_reason=FinishReason.STOP,
  )


def alone(item, temperature=1.0):
  """Log-probs of the actions from a forward pass over this trajectory and nothing else."""
  # Zeros behind it, to compile once: the past sees no future.
  packed = one_document(np.pad(item.tokens, (0, 16 - len(item.tokens)))[None])
  logits_TV = heads.logits(PARAMS, hidden(TINY, PARAMS, packed)[0], TINY)
  logprobs_TV = jax.nn.log_softmax(logits_TV / temperature)
  at = np.flatnonzero(item.action_mask)
  return np.asarray(logprobs_TV)[at - 1, item.tokens[at]]


@pytest.mark.parametrize(
  ("temperature", "merge_rows", "chunk"),
  [(1.0, False, 12), (0.7, True, 5)],  # the whole row at a time, and pieces with a rest
)
def test_shared_prompts_change_no_logprob(temperature, merge_rows, chunk):
  draw = np.random.default_rng(3).integers
  prompts = [draw(TINY.vocab_size, size=n) for n in (7, 3, 1)]
  items = [
    trajectory(prompts[0], draw(TINY.vocab_size, size=4)),
    trajectory(prompts[1], draw(TINY.vocab_size, size=5), (1, 1, 0, 0, 1), group=1),
    trajectory(prompts[0], draw(TINY.vocab_size, size=2)),
    trajectory(prompts[2], draw(TINY.vocab_size, size=6), group=2),
    trajectory(prompts[0], draw(TINY.vocab_size, size=5), (1, 0, 1, 1, 0)),
    trajectory(prompts[1], draw(TINY.vocab_size, size=1), group=1),
  ]
  packed = pack(items, PackConfig(length=20, actions=12, rows=2))
  assert len({place.row for place in packed.places}) < len(items)
  config = dataclasses.replace(TINY, merge_rows=merge_rows)
  logprobs = jax.jit(action_logprobs, static_argnums=(0, 3), static_argnames="chunk")
  logp_BA, _ = logprobs(
    config, PARAMS, packed.rows, SamplingConfig(temperature=temperature), chunk=chunk
  )
  for item, got in zip(items, packed.gather(np.asarray(logp_BA)), strict=True):
    np.testing.assert_allclose(got, alone(item, temperature), rtol=0, atol=1e-5)


def test_documents_and_branches_do_not_see_each_other():
  segment = jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 2, 0]])
  branch = jnp.asarray([[0, 0, 1, 1, 2, 0, 0, 0, 0]])
  position = jnp.asarray([[0, 1, 2, 3, 2, 0, 1, 2, 0]])
  tokens = random_tokens((1, 9))

  def moved(at):
    """Which positions change where the token `at` does; the others are bitwise the same."""
    before, after = (
      np.asarray(hidden(TINY, PARAMS, decoder.Packed(jnp.asarray(t), position, segment, branch)))
      for t in (tokens, np.where(np.arange(9) == at, (tokens + 1) % TINY.vocab_size, tokens))
    )
    return np.flatnonzero((before != after).any(axis=-1)[0]).tolist()

  assert moved(0) == [0, 1, 2, 3, 4]
  assert moved(2) == [2, 3]
  assert moved(4) == [4]
  assert moved(5) == [5, 6, 7]
  assert moved(8) == [8]


def test_kept_keys_and_values():
  packed = one_document(random_tokens((2, 5)))
  out, (k_LBTKH, v_LBTKH) = decoder.bind(TINY, PARAMS)(packed, keep_kv=True)
  assert k_LBTKH.shape == v_LBTKH.shape == (2, 2, 5, 2, 8)
  np.testing.assert_allclose(out, hidden(TINY, PARAMS, packed), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_products_with_the_table(tied):
  config = dataclasses.replace(TINY, tie_embeddings=tied)
  params = decoder.init_params(config, jax.random.key(1))
  hidden_AD = jax.random.normal(jax.random.key(2), (3, TINY.d_model))
  table_VD = params["embed"]["table"] if tied else params["lm_head"]["w"].T
  got = heads.logits(params, hidden_AD, config)
  np.testing.assert_allclose(got, hidden_AD @ table_VD.T, rtol=1e-5, atol=1e-5)
  assert ("lm_head" in params) == (not tied)


def test_value_head():
  head = heads.init_value_head(4)
  np.testing.assert_array_equal(heads.values(head, jnp.ones((2, 3, 4))), np.zeros((2, 3)))
  head = {"w": jnp.asarray([1.0, 2.0, 0.0, -1.0]), "b": jnp.asarray(0.5)}
  np.testing.assert_allclose(heads.values(head, jnp.asarray([[1.0, 1.0, 9.0, 2.0]])), [1.5])


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_named_and_counted(tied):
  config = dataclasses.replace(TINY, tie_embeddings=tied)
  params = decoder.init_params(config, jax.random.key(0))
  decoder.check_params(config, params)
  assert sum(x.size for x in jax.tree.leaves(params)) == config.num_params
  axes = decoder.logical_axes(config)
  ranks = jax.tree.map(lambda x, names: x.ndim == len(names), params, axes)
  assert all(jax.tree.leaves(ranks))
  assert axes["layers"]["attn"]["wq"] == ("layers", "embed", "heads", "head")


def test_full_size_shapes_without_memory():
  config = DecoderConfig(
    vocab_size=128_256, d_model=8192, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128,
    d_ff=28_672, tie_embeddings=False, matmul_dtype="bfloat16", activation_dtype="bfloat16",
  )  # fmt: skip
  assert config.num_params == 70_553_706_496  # Llama 3 70B
  params = jax.eval_shape(functools.partial(decoder.init_params, config), jax.random.key(0))
  out = jax.eval_shape(
    functools.partial(hidden, config), params, one_document(np.zeros((1, 4), int))
  )
  assert out.shape == (1, 4, 8192)
  assert out.dtype == jnp.bfloat16


def test_check_params_names_what_is_wrong():
  table = PARAMS["embed"]["table"]
  with pytest.raises(ValueError, match=r"final_norm.*missing"):
    decoder.check_params(TINY, {k: v for k, v in PARAMS.items() if k != "final_norm"})
  with pytest.raises(ValueError, match=r"extra.*unknown"):
    decoder.check_params(TINY, PARAMS | {"extra": {"w": table}})
  with pytest.raises(ValueError, match=r"table.*\(39, 32\).*\(40, 32\)"):
    decoder.check_params(TINY, PARAMS | {"embed": {"table": table[:-1]}})


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ({"head_dim": 7}, "head_dim 7 is odd"),
    ({"matmul_dtype": "float16"}, "matmul_dtype is 'float16'"),
    ({"activation_dtype": "int8"}, "activation_dtype is 'int8'"),
    ({"remat": "all"}, "remat is 'all'; use one of none, dots, attention, full"),
    ({"attention": "splash"}, "attention is 'splash'"),
  ],
)
def test_config_errors(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(TINY, **change)
