"""The engine samples from the decoder's own distribution: greedy, scored, and sharded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_cases import MODEL, SAMPLINGS, engine, mixed_requests, request

from ptjax.core.types import Outcome, Trajectory
from ptjax.experience.packing import PackConfig, pack
from ptjax.models import decoder, heads
from ptjax.rollout import decode
from ptjax.rollout.engine import generate
from ptjax.rollout.sampling import SamplingConfig
from ptjax.rollout.weights import engine_weights
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.forward import action_logprobs
from ptjax.train.networks import Layout

LENGTH = 48


@jax.jit
def next_logits(params, tokens_T, length):
  """Logits after the first `length` tokens of one row, without a cache."""
  index = jnp.arange(LENGTH)[None]
  real = (index < length).astype(jnp.int32)
  packed = decoder.Packed(tokens_T[None], index, real, jnp.zeros_like(real))
  hidden_TD = decoder.bind(MODEL, params)(packed)[0]
  return heads.logits(params, hidden_TD[length - 1][None], MODEL)[0]


@pytest.mark.parametrize("prompt_length", [1, 5, 9, 33])
def test_greedy_equals_an_uncached_argmax_loop(weights, prompt_length):
  one = request(prompt_length, prompt_length, 12, SamplingConfig(temperature=0.0))
  done = generate(engine(weights), [one])[one.id]
  tokens_T = np.zeros(LENGTH, np.int32)
  tokens_T[:prompt_length] = one.prompt
  for at in range(prompt_length, prompt_length + 12):
    tokens_T[at] = int(jnp.argmax(next_logits(weights, tokens_T, at)))
  np.testing.assert_array_equal(done.tokens, tokens_T[prompt_length : prompt_length + 12])


@pytest.mark.parametrize("tied", [True, False])
def test_weights_of_either_form_decode_alike(tied):
  """One decode step from the first token on, against the forward pass without a cache."""
  model = dataclasses.replace(MODEL, tie_embeddings=tied)
  params = decoder.init_params(model, jax.random.key(7))
  tokens_R, rows = jnp.asarray([5, 250, 17]), 3
  index_RT = jnp.zeros((rows, 1), jnp.int32)
  packed = decoder.Packed(tokens_R[:, None], index_RT, index_RT + 1, index_RT)
  hidden_RTD = decoder.bind(model, params)(packed)
  want_RV = heads.logits(params, hidden_RTD[:, 0], model)
  for out_first in (False, True):
    form = dataclasses.replace(model, ff_parts=1, out_first=out_first)
    got_RV, *_ = decode.next_logits(
      form,
      engine_weights(params, form),
      decode.empty_cache(form, rows, 8),
      tokens_R,
      jnp.zeros(rows, jnp.int32),
    )
    np.testing.assert_allclose(got_RV, want_RV, rtol=1e-5, atol=1e-5)


def trajectories(requests, done):
  for group, one in enumerate(requests):
    completion, prompt = done[one.id], len(one.prompt)
    fill = lambda value, rest, prompt=prompt: np.concatenate([np.full(prompt, value), rest])  # noqa: E731
    yield Trajectory(
      tokens=np.concatenate([one.prompt, completion.tokens]),
      action_mask=fill(0, np.ones(len(completion.tokens))).astype(bool),
      behavior_logprobs=fill(0.0, completion.logprobs).astype(np.float32),
      policy_versions=fill(-1, completion.policy_versions).astype(np.int32),
      turn_starts=(0, prompt),
      domain="test",
      group=group,
      seed=one.seed,
      rewards={"": 0.0},
      outcome=Outcome.SCORED,
      finish_reason=completion.finish_reason,
    )


@functools.partial(jax.jit, static_argnums=2)
def trainer_logprobs(params, rows, sampling):
  return action_logprobs(MODEL, params, rows, sampling, chunk=32)[0]


SAMPLED = [config for config in SAMPLINGS if config.temperature > 0]


@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
def test_trainer_gives_the_engines_logprobs(weights, sampling):
  """The importance ratio of fresh samples is 1, whatever the temperature and the filters."""
  requests = [request(i, 1 + 3 * i, 14, sampling) for i in range(10)]
  items = list(trajectories(requests, generate(engine(weights), requests)))
  packed = pack(items, PackConfig(length=96, actions=64, rows=4))
  logp_BA = np.asarray(trainer_logprobs(weights, packed.rows, sampling))
  plain_BA = np.asarray(trainer_logprobs(weights, packed.rows, SamplingConfig()))
  gaps = [], []
  for item, got, plain in zip(items, packed.gather(logp_BA), packed.gather(plain_BA), strict=True):
    behavior = item.behavior_logprobs[item.action_mask]
    gaps[0].append(np.abs(got - behavior).max())
    gaps[1].append(np.abs(plain - behavior).max())
  assert max(gaps[0]) < 1e-4
  if sampling != SamplingConfig():
    assert max(gaps[1]) > 0.1  # scored as if unfiltered at temperature 1, it would show


def test_sharded_weights_sample_the_same(weights):
  """Policy weights where the trainer keeps them, on (data, fsdp, tensor) = (2, 2, 2)."""
  layout = Layout(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), Rules())
  placed = layout.place(weights, decoder.logical_axes(MODEL))
  assert len(placed["embed"]["table"].sharding.device_set) == 8
  requests = mixed_requests(12)
  want = generate(engine(weights), requests)
  done = generate(engine(placed), requests)
  for number, one in want.items():
    np.testing.assert_array_equal(done[number].tokens, one.tokens)
    np.testing.assert_allclose(done[number].logprobs, one.logprobs, rtol=0, atol=1e-5)
