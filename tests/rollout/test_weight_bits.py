"""A sampler whose matrices are rounded: what rounding does, and that the engine samples from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_cases import ENGINE, MODEL, engine, request

from ptjax.models.decoder import init_params
from ptjax.rollout.engine import EngineConfig, generate
from ptjax.rollout.weights import rounded


def test_rounding_by_hand():
  # Two outputs; 3 bits are the levels -3 to 3. Scales 3/3 = 1 and 0.6/3 = 0.2; zeros stay.
  w_LIO = jnp.asarray([[[3.0, 0.25, 0.0], [1.4, -0.6, 0.0]]])
  params = {"layers": {"ff": {"w_up": w_LIO, "scale": jnp.asarray([0.123])}}}
  got = rounded(params, 3)["layers"]["ff"]
  np.testing.assert_allclose(got["w_up"], [[[3.0, 0.2, 0.0], [1.0, -0.6, 0.0]]], rtol=1e-6)
  np.testing.assert_array_equal(got["scale"], params["layers"]["ff"]["scale"])


def test_every_matrix_is_off_by_half_a_level_at_most(weights):
  bits = 5
  changed = 0
  exact, coarse = (
    jax.tree_util.tree_leaves_with_path(p) for p in (weights, rounded(weights, bits))
  )
  for (path, w), (_, got) in zip(exact, coarse, strict=True):
    error = np.abs(np.asarray(w) - np.asarray(got)).max()
    if path[-1].key.startswith("w"):
      assert 0 < error <= np.abs(w).max() / (2 ** (bits - 1) - 1) / 2 * 1.001
      changed += 1
    else:
      assert error == 0
  assert changed == 7  # the matrices of a Llama layer


def test_scales_are_of_the_layer_and_the_output_channel():
  """wo [layer, head, channel, out] has two input axes."""
  params = init_params(MODEL, jax.random.key(1))
  wo_LNHD = np.asarray(rounded(params, 4)["layers"]["attn"]["wo"])
  levels = np.unique(wo_LNHD[1, :, :, 3])
  assert len(levels) <= 2 * 7 + 1
  step = np.abs(np.asarray(params["layers"]["attn"]["wo"])[1, :, :, 3]).max() / 7
  np.testing.assert_allclose(levels / step, np.round(levels / step), atol=1e-4)


def test_the_engine_samples_from_the_rounded_weights(weights):
  config = EngineConfig(**{**vars(ENGINE), "weight_bits": 3})
  requests = [request(i) for i in range(4)]
  got = generate(engine(weights, config=config), requests)
  want = generate(engine(rounded(weights, 3)), requests)
  plain = generate(engine(weights), requests)
  for i in got:
    np.testing.assert_array_equal(got[i].tokens, want[i].tokens)
    np.testing.assert_array_equal(got[i].logprobs, want[i].logprobs)
  assert any(not np.array_equal(got[i].tokens, plain[i].tokens) for i in got)


def test_bits_out_of_range():
  with pytest.raises(ValueError, match="weight_bits 1 must be 2 to 16"):
    EngineConfig(weight_bits=1)
