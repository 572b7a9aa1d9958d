"""The TPU kernels, interpreted, against the oracle: values and gradients."""

import dataclasses
import functools

import jax.numpy as jnp
import pytest
from attention_cases import HEADS, ids, qkv
from ring_cases import assert_close, attend, context, value_and_grads, whole

from ptjax.kernels.blocks import Ids
from ptjax.kernels.context import flash_attention
from ptjax.kernels.flash import How
from ptjax.kernels.scores import PLAIN, Scores

LENGTH = 300  # blocks of 128, and a rest
PACKED = ids((((150, (60, 40)), (30, ())), ((2, ()), (298, ()))), LENGTH)
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def on_one_device(q, k, v, *, scores=PLAIN, window=None, sinks=None):
  places = jnp.broadcast_to(jnp.arange(LENGTH), PACKED[0].shape)
  tokens = Ids(*map(jnp.asarray, PACKED), places)
  how = How.of(scores, q.shape[-1], "tpu_interpret", 128)
  window = None if window is None else jnp.asarray(window)
  return flash_attention(how, q, k, v, sinks, window, tokens, tokens)


@pytest.mark.parametrize(
  ("heads", "dtype", "window", "shaped"),
  [("gqa", "float32", None, False), ("mqa", "bfloat16", 90, True), ("mha", "float32", 90, True)],
)
def test_equals_the_oracle(heads, dtype, window, shaped):
  arrays = [jnp.asarray(x, dtype) for x in qkv(heads, PACKED[0].shape)]
  bar = jnp.asarray(qkv(heads, PACKED[0].shape, seed=1)[0], dtype)
  sinks = jnp.linspace(-1.0, 1.5, HEADS[heads][0]) if shaped else None
  rest = {"scores": Scores(0.5, 3.0) if shaped else PLAIN, "window": window}
  got = value_and_grads(on_one_device, arrays, bar, sinks, **rest)
  want = value_and_grads(functools.partial(whole, packed=PACKED), arrays, bar, sinks, **rest)
  assert_close(got, want, TOLERANCE[dtype])


def test_in_a_ring():
  arrays, bar = qkv("gqa", PACKED[0].shape), qkv("gqa", PACKED[0].shape, seed=1)[0]
  where = dataclasses.replace(context(2, way="ring"), engine="tpu_interpret", block=128)
  got = value_and_grads(functools.partial(attend, where, packed=PACKED), arrays, bar)
  want = value_and_grads(functools.partial(whole, packed=PACKED), arrays, bar)
  assert_close(got, want, 1e-5)
