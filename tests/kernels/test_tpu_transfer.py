"""The ring whose TPU kernels send keys themselves: interpreted with its copies and semaphores."""

import dataclasses
import functools

import jax
import pytest
from attention_cases import ids, qkv
from jax.experimental.pallas import tpu as pltpu
from ring_cases import assert_close, attend, context, value_and_grads, whole

SHARDS = 3  # the least whose backward pass sends too
PACKED = ids((((150, (106,)), (100, ())),), 384)


def inputs(seed=0):
  return qkv("mha", PACKED[0].shape, seed=seed)


def one_head(x):
  return x[:, :, :1]


@pytest.mark.parametrize("mode", ["eager", "on_wait"])
def test_equals_the_oracle(mode, capsys):
  """`on_wait` copies as late as may be, `eager` at once; memory that nobody wrote is nan."""
  arrays, bar = map(one_head, inputs()), one_head(inputs(seed=1)[0])
  arrays = tuple(arrays)
  where = dataclasses.replace(context(SHARDS, way="ring"), engine="tpu", block=128, transfer="dma")
  params = pltpu.InterpretParams(
    dma_execution_mode=mode, detect_races=True, uninitialized_memory="nan"
  )
  with pltpu.force_tpu_interpret_mode(params):
    got = value_and_grads(functools.partial(attend, where, packed=PACKED), arrays, bar)
    jax.block_until_ready(got)
  assert "RACE" not in capsys.readouterr().out
  want = value_and_grads(functools.partial(whole, packed=PACKED), arrays, bar)
  assert_close(got, want, 1e-5)


def test_only_tpu_kernels_send():
  where = dataclasses.replace(context(2, way="ring"), transfer="dma")
  with pytest.raises(ValueError, match="'dma' is the TPU kernels'; use 'xla'"):
    attend(where, *inputs(), packed=PACKED)
