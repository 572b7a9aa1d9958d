"""Weights in 8 bits: rounding by hand, bounded errors, products that read the narrow form."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ptjax.models import decoder, heads
from ptjax.models.importer import load_pretrained
from ptjax.models.matrices import Quantized, dense, densify, is_matrix
from ptjax.models.quantize import quantize, quantize_blocks, quantized_axes
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules, tree_shardings

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "families"
KINDS = ("int8", "fp8")
# Largest relative error of the logits, in the 2-norm; fp8 has 4 significant bits. Measured on these
# tiny random models: 0.025 to 0.038, and 0.09 to 0.21 where a router changes its mind.
BOUNDS = {"int8": 0.05, "fp8": 0.25}


def test_int8_by_hand():
  """The scale of a column is its largest magnitude / 127; a column of 0 stays 0."""
  w = quantize(np.asarray([[1.27, 0.0], [-0.636, 0.0]], np.float32), 1, 1, "int8")
  np.testing.assert_allclose(w.scale, [[0.01, 1 / 127]], rtol=1e-6)
  np.testing.assert_array_equal(w.values, [[127, 0], [-64, 0]])
  assert w.values.dtype == np.int8
  np.testing.assert_allclose(dense(w), [[1.27, 0.0], [-0.64, 0.0]], rtol=1e-6)


def test_fp8_by_hand():
  """448 * 3/7 = 192 is one of its numbers; 448 * 0.3 = 134.4 lies between 128 and 144."""
  w = quantize(np.asarray([[7.0], [3.0], [-2.1]], np.float32), 1, 1, "fp8")
  assert w.values.dtype == ml_dtypes.float8_e4m3fn
  np.testing.assert_array_equal(w.values.astype(np.float32), [[448], [192], [-128]])


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_bounded_for_each_channel(kind, on_host):
  rng = np.random.default_rng(0)
  w_LNHD = rng.normal(0, 1, (2, 3, 8, 5)).astype(np.float32) * np.asarray([1e-3, 1, 10, 0.1, 1])
  w_LNHD = w_LNHD.astype(np.float32)
  got = quantize(w_LNHD if on_host else jnp.asarray(w_LNHD), 2, 1, kind)
  assert isinstance(got.values, np.ndarray) == on_host
  assert got.scale.shape == (2, 1, 1, 5)
  error = np.abs(np.asarray(dense(got)) - w_LNHD)
  peak = np.abs(w_LNHD).max(axis=(1, 2), keepdims=True)
  if kind == "int8":
    assert (error <= 0.5001 * peak / 127).all()
  else:
    assert (error <= np.maximum(np.abs(w_LNHD) / 16, peak / 448 / 512) * 1.001).all()


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, tokens_BT):
  index_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
  ones_BT = jnp.ones_like(tokens_BT)
  packed = decoder.Packed(tokens_BT, index_BT, ones_BT, 0 * ones_BT)
  hidden_BTD = decoder.bind(config, params)(packed)
  return heads.logits(params, hidden_BTD.reshape(-1, config.d_model), config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "deepseek_v3"])
def test_logits_of_the_parity_fixtures(name, kind):
  model = load_pretrained(str(FIXTURES / name))
  config = dataclasses.replace(model.config, remat="none", ff_parts=2)
  tokens_BT = jnp.asarray(np.load(FIXTURES / f"{name}.npz")["ids"], jnp.int32)
  params = jax.tree.map(jnp.asarray, model.params)
  quantized = quantize_blocks(params, kind)
  want, got = (logits(config, p, tokens_BT) for p in (params, quantized))
  error = float(jnp.linalg.norm(got - want) / jnp.linalg.norm(want))
  assert 0 < error < BOUNDS[kind]
  # The product with the narrow form is that with the matrix it stands for.
  np.testing.assert_allclose(got, logits(config, densify(quantized), tokens_BT), rtol=0, atol=2e-5)


def test_blocks_take_a_quarter_of_the_bytes():
  model = load_pretrained(str(FIXTURES / "qwen3_moe"))
  quantized = quantize_blocks(model.params, "int8")
  matrices = [
    (path, leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(quantized, is_leaf=is_matrix)
    if is_matrix(leaf)
  ]
  names = {path[-1].key for path, _ in matrices}
  assert names == {"wq", "wk", "wv", "wo", "e_gate", "e_up", "e_down"}
  narrow = sum(w.values.nbytes + w.scale.nbytes for _, w in matrices)
  wide = sum(4 * w.values.size for _, w in matrices)
  assert wide / 4 < narrow < 0.35 * wide  # scales of tiny matrices take a share


def test_values_lie_where_the_matrix_lies():
  model = load_pretrained(str(FIXTURES / "qwen3_moe"))
  axes = quantized_axes(model.config)
  assert axes["layers"]["mlp"]["e_up"] == Quantized(
    ("layers", "expert", "embed", "expert_ff"), ("layers", "expert", None, "expert_ff")
  )
  assert axes["layers"]["attn"]["wo"].scale == ("layers", None, None, "embed")
  mesh = make_mesh(MeshConfig(fsdp=4, expert=2))
  quantized = quantize_blocks(model.params, "int8")
  where = tree_shardings(Rules(), mesh, axes, quantized)
  placed = jax.device_put(quantized, where)
  for want, have in zip(jax.tree.leaves(quantized), jax.tree.leaves(placed), strict=True):
    np.testing.assert_array_equal(want, have)
