"""The compiled loss holds the logits of a chunk, never vocabulary times length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.models.config import DecoderConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.forward import state_logprobs

ROWS, WIDTH, CHUNK = 2, 16, 64
MIB = 2**20


def model_of(vocab: int) -> DecoderConfig:
  return DecoderConfig(
    vocab_size=vocab, d_model=WIDTH, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, d_ff=16
  )


def loss(vocab, chunk, sampling, params, hidden_BAD, target_BA):
  outputs = state_logprobs(model_of(vocab), params, hidden_BAD, target_BA, sampling, chunk)
  logp_BA, entropy_BA = outputs
  return jnp.sum(logp_BA) + 0.1 * jnp.sum(entropy_BA)


def temporaries(vocab: int, slots: int, chunk: int, sampling: SamplingConfig) -> float:
  """MiB that the gradient holds beside its arguments and results."""
  shapes = (
    {"lm_head": {"w": jax.ShapeDtypeStruct((WIDTH, vocab), jnp.float32)}},
    jax.ShapeDtypeStruct((ROWS, slots, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((ROWS, slots), jnp.int32),
  )
  grad = jax.grad(functools.partial(loss, vocab, chunk, sampling), argnums=(0, 1))
  return jax.jit(grad).lower(*shapes).compile().memory_analysis().temp_size_in_bytes / MIB


@pytest.mark.parametrize(
  "sampling", [SamplingConfig(), SamplingConfig(top_k=8)], ids=["all", "top_k"]
)
def test_memory_does_not_grow_with_vocabulary_times_length(sampling):
  """Four times the length at a vocabulary of 16,384: whole logits would take 96 MiB more."""
  chunk_logits = ROWS * CHUNK * 16384 * 4 / MIB
  short, long = (temporaries(16384, slots, CHUNK, sampling) for slots in (256, 1024))
  assert long - short < 0.1 * chunk_logits
  # The measure sees what it is for: with one chunk the logits are all there.
  if not sampling.filtered:
    assert temporaries(16384, 1024, 1024, sampling) > 2 * ROWS * 1024 * 16384 * 4 / MIB * 0.9
    assert long < 6 * chunk_logits


@pytest.mark.parametrize("slots", [10, 12])
def test_chunks_change_neither_value_nor_gradient(slots):
  """Chunks of 4 over 12 slots, and over 10, whose last chunk is filled up."""
  rng = np.random.default_rng(0)
  params = {"lm_head": {"w": rng.normal(size=(WIDTH, 32)).astype(np.float32)}}
  hidden = rng.normal(size=(ROWS, slots, WIDTH)).astype(np.float32)
  target = rng.integers(0, 32, (ROWS, slots)).astype(np.int32)

  def of(chunk):
    run = functools.partial(loss, 32, chunk, SamplingConfig())
    return jax.jit(jax.value_and_grad(run, argnums=(0, 1)))(params, hidden, target)

  for got, want in zip(jax.tree.leaves(of(4)), jax.tree.leaves(of(slots)), strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
