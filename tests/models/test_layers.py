"""Products in low precision, the norm by hand, the rotary embedding as complex numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.models.config import DecoderConfig
from ptjax.models.layers import out_first, product, project, rms_norm, rope, rotation

SHAPE = DecoderConfig(
  vocab_size=8, d_model=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4, d_ff=4
)
SPECS = {
  "BTD,DNH->BTNH": ((2, 3, 16), (16, 4, 8)),
  "BTNH,NHD->BTD": ((2, 3, 4, 8), (4, 8, 16)),
  "BD,DF->BF": ((5, 16), (16, 24)),
  "AD,VD->AV": ((5, 16), (33, 16)),
}


def narrowed(x):
  """The float32 numbers that bfloat16 keeps."""
  return np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32))


def products(spec, x, w, bar):
  """The product and its two gradients in float64."""
  (a, b), out = spec.split("->")[0].split(","), spec.split("->")[1]
  x, w, bar = (np.asarray(value, np.float64) for value in (x, w, bar))
  return (
    np.einsum(spec, x, w),
    np.einsum(f"{out},{b}->{a}", bar, w),
    np.einsum(f"{a},{out}->{b}", x, bar),
  )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", SPECS)
def test_project_reads_its_operands_in_dtype(spec, dtype):
  """Forward and backward are the float64 products of the operands as `dtype` holds them."""
  rng = np.random.default_rng(0)
  x, w = (rng.normal(size=shape).astype(np.float32) for shape in SPECS[spec])
  out, pull = jax.vjp(lambda x, w: project(spec, x, w, dtype), x, w)
  bar = rng.normal(size=out.shape).astype(np.float32)
  keep = narrowed if dtype == "bfloat16" else np.asarray
  want = products(spec, keep(x), keep(w), keep(bar))
  for got, expected in zip((out, *pull(jnp.asarray(bar))), want, strict=True):
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lead", [(5,), (2, 3)])
@pytest.mark.parametrize("outputs", [(24,), (4, 6)])
def test_product_from_either_side(lead, outputs, dtype):
  rng = np.random.default_rng(2)
  x = rng.normal(size=(*lead, 16)).astype(np.float32)
  w = rng.normal(size=(16, *outputs)).astype(np.float32)
  right = dataclasses.replace(SHAPE, matmul_dtype=dtype)
  left = dataclasses.replace(right, out_first=True)
  keep = narrowed if dtype == "bfloat16" else np.asarray
  want = np.tensordot(keep(x).astype(np.float64), keep(w).astype(np.float64), 1)
  for got in (product(x, w, right), product(x, out_first(jnp.asarray(w)), left)):
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_out_first_of_two_input_axes():
  w = jnp.arange(24).reshape(2, 3, 4)
  np.testing.assert_array_equal(out_first(w, 2), np.moveaxis(np.asarray(w), -1, 0))
  np.testing.assert_array_equal(out_first(w), np.moveaxis(np.asarray(w), 0, -1))


@pytest.mark.parametrize("spec", SPECS)
def test_project_in_bfloat16_is_close_to_float32(spec):
  rng = np.random.default_rng(1)
  x, w = (rng.normal(size=shape).astype(np.float32) for shape in SPECS[spec])
  results = []
  for dtype in ("bfloat16", "float32"):
    out, pull = jax.vjp(lambda x, w, dtype=dtype: project(spec, x, w, dtype), x, w)
    results.append((out, *pull(jnp.ones_like(out))))
  for got, want in zip(*results, strict=True):
    scale = float(jnp.sqrt(jnp.mean(want**2)))
    assert float(jnp.sqrt(jnp.mean((got - want) ** 2))) < 1e-2 * scale
    assert (got != want).any()  # it did narrow


def test_project_accumulates_in_float32():
  """1001 ones: bfloat16 cannot hold the sum, and would stop counting at 256."""
  x = jnp.ones((1, 1001))
  np.testing.assert_array_equal(project("AD,DV->AV", x, x.T, "bfloat16"), [[1001.0]])


def test_project_gradients_have_the_dtypes_of_the_operands():
  x, w = jnp.ones((2, 4), jnp.bfloat16), jnp.ones((4, 3), jnp.float32)
  out, pull = jax.vjp(lambda x, w: project("BD,DF->BF", x, w, "bfloat16"), x, w)
  dx, dw = pull(jnp.ones((2, 3), jnp.float32))
  assert (out.dtype, dx.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
  np.testing.assert_array_equal(dx.astype(jnp.float32), np.full((2, 4), 3.0))
  np.testing.assert_array_equal(dw, np.full((4, 3), 2.0))


@pytest.mark.parametrize(
  ("eps", "want"),
  [
    (0.0, [3 / 12.5**0.5, 8 / 12.5**0.5]),  # the mean of 9 and 16 is 12.5
    (12.5, [0.6, 1.6]),  # eps is inside the root, beside the mean square
  ],
)
def test_rms_norm_by_hand(eps, want):
  got = rms_norm(jnp.asarray([[3.0, 4.0]]), jnp.asarray([1.0, 2.0]), eps)
  np.testing.assert_allclose(got, [want], rtol=1e-6)


def test_rms_norm_of_bfloat16_squares_in_float32():
  x = 1 + np.random.default_rng(0).uniform(size=(4, 4096)).astype(np.float32)
  narrow = jnp.asarray(x, jnp.bfloat16)
  got = rms_norm(narrow, jnp.ones(4096), 1e-5)
  assert got.dtype == jnp.bfloat16
  wide = np.asarray(narrow.astype(jnp.float32))
  want = wide / np.sqrt(np.mean(wide.astype(np.float64) ** 2, axis=-1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=2**-8)


def turned(x, positions, theta):
  """x rotated by the code under test."""
  x = jnp.asarray(x)
  return rope(x, rotation(jnp.asarray(positions), x.shape[-1], theta))


def rotated(x, positions, theta):
  """z e^(i position theta^(-2j/H)) with z_j = x_j + i x_(j + H/2), in float64."""
  half = x.shape[-1] // 2
  z = x[..., :half] + 1j * x[..., half:].astype(np.float64)
  angle = positions[..., None, None] * theta ** (-2.0 * np.arange(half) / (2 * half))
  z = z * np.exp(1j * angle)
  return np.concatenate([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize(
  ("positions", "atol"),
  [
    ([[0, 1, 2], [7, 7, 3]], 2e-6),
    ([[4095, 4096, 4097], [8191, 5000, 6007]], 2e-3),  # a float32 step is 5e-4 radians there
  ],
)
def test_rope_is_a_complex_rotation(positions, atol, theta):
  positions = np.asarray(positions, np.int32)
  x = np.random.default_rng(0).normal(size=(2, 3, 4, 16)).astype(np.float32)
  got = turned(x, positions, theta)
  np.testing.assert_allclose(got, rotated(x, positions, theta), rtol=0, atol=atol)


def test_rope_by_hand():
  """Width 4, base 100: the pairs (x0, x2) and (x1, x3) turn by 1 and 1/10 radian a position."""
  got = turned([[[1.0, 1.0, 0.0, 0.0]]], [2], 100.0)
  want = [np.cos(2.0), np.cos(0.2), np.sin(2.0), np.sin(0.2)]
  np.testing.assert_allclose(got[0, 0], want, rtol=1e-6)


def test_rope_of_bfloat16_keeps_its_angles_at_large_positions():
  x = np.random.default_rng(0).normal(size=(1, 3, 1, 16)).astype(np.float32)
  positions = np.asarray([[4096, 4097, 8191]], np.int32)
  got = turned(jnp.asarray(x, jnp.bfloat16), positions, 10_000.0)
  assert got.dtype == jnp.bfloat16
  want = rotated(narrowed(x), positions, 10_000.0)
  np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=0, atol=2e-2)


def test_rope_scores_depend_on_the_distance_alone():
  q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 16)).astype(np.float32)
  score = lambda i, j: float(  # noqa: E731 - two positions to one number
    jnp.vdot(turned(q, [i], 1e4), turned(k, [j], 1e4))
  )
  assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)
  assert score(9, 4) != pytest.approx(score(4, 9), abs=1e-2)
