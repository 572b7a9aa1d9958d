"""Every family on its own tiny checkpoint equals transformers; see `fixtures/make_families.py`."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptjax.models import decoder, heads, weight_map
from ptjax.models.importer import load_pretrained
from ptjax.rollout.engine import Engine, EngineConfig, Request, generate
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.networks import critic_params

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in (FIXTURES / "families").glob("*.npz"))
STRIDE = 7  # of the numbers of a gradient, as in `make_families.py`


@functools.cache
def model(name):
  pretrained = load_pretrained(str(FIXTURES / "families" / name))
  # What is computed again is tested elsewhere, and costs compile time here.
  config = dataclasses.replace(pretrained.config, remat="none", ff_parts=1, merge_rows=True)
  return dataclasses.replace(pretrained, config=config)


@functools.cache
def reference(name):
  with np.load(FIXTURES / "families" / f"{name}.npz") as arrays:
    return dict(arrays)


def one_document(tokens_BT):
  tokens_BT = jnp.asarray(tokens_BT)
  positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
  ones, zeros = jnp.ones_like(tokens_BT), jnp.zeros_like(tokens_BT)
  return decoder.Packed(tokens_BT, positions_BT, ones, zeros)


def forward(config, params, tokens_BT):
  """Logits f32[B, T, V] of unpadded rows."""
  hidden_BTD = decoder.bind(config, params)(one_document(tokens_BT))
  flat = heads.logits(params, hidden_BTD.reshape(-1, config.d_model), config)
  return flat.reshape(*hidden_BTD.shape[:2], -1)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradients(config, params, ids_BT):
  def loss(params):
    logits_BTV = forward(config, params, ids_BT)
    logprobs_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
    picked_BT = jnp.take_along_axis(logprobs_BTV, ids_BT[:, 1:, None], axis=-1)
    return -jnp.mean(picked_BT), logits_BTV

  return jax.value_and_grad(loss, has_aux=True)(params)


def as_stored(config, params):
  """The tree under the checkpoint's names and shapes."""
  stored = {}
  for name, slot in weight_map.slots(config):
    leaf = functools.reduce(lambda node, key: node[key], slot.path, params)
    tensor = stored.setdefault(name, np.empty(slot.stored, np.float32))
    slot.view(tensor)[...] = np.asarray(leaf)[slot.index]
  return stored


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients(name):
  config, params, want = model(name).config, model(name).params, reference(name)
  decoder.check_params(config, params)
  assert sum(x.size for x in jax.tree.leaves(params)) == config.num_params
  (value, logits_BTV), grads = loss_and_gradients(config, params, want["ids"])
  np.testing.assert_allclose(logits_BTV, want["logits"], rtol=0, atol=1e-4)
  np.testing.assert_allclose(value, want["loss"], rtol=1e-5)
  stored, compared = as_stored(config, grads), 0
  for tensor, grad in stored.items():
    if f"grad/{tensor}" in want:
      thinned = grad.reshape(-1)[::STRIDE]
      np.testing.assert_allclose(thinned, want[f"grad/{tensor}"], rtol=1e-3, atol=1e-4)
      assert np.abs(thinned).max() > 0 or ".experts." in tensor, tensor  # one may be unused
      compared += 1
  # The correction of sigmoid routing takes no gradient; there is one for each layer of experts.
  corrections = sum("correction" in tensor for tensor in stored)
  assert compared == len(stored) - corrections == sum(key[:5] == "grad/" for key in want)


@pytest.mark.parametrize("name", NAMES)
def test_engine_decodes_greedily_as_transformers(name):
  want = reference(name)["greedy"]
  config = EngineConfig(num_slots=2, max_length=64, decode_chunk=32, min_prefill=8)
  engine = Engine(config, model(name).config, None)
  engine.set_weights(model(name).params, 0)
  request = Request(
    id=0, prompt=want[:5], max_new_tokens=32, sampling=SamplingConfig(temperature=0.0), seed=0
  )
  got = generate(engine, [request])[0]
  np.testing.assert_array_equal(got.tokens, want[5:])


@functools.partial(jax.jit, static_argnums=0)
def logits_of(config, params, tokens_BT):
  return forward(config, params, tokens_BT)


ROPES = ("linear", "dynamic", "yarn", "yarn_weighted", "yarn_given", "llama3", "longrope")


@pytest.mark.parametrize("name", ROPES)
def test_rope_scaling(name, tmp_path):
  """Beyond the original context too, where transformers decodes one token at a time."""
  directory = pathlib.Path(shutil.copytree(FIXTURES / "tiny_llama", tmp_path / "tiny"))
  with np.load(FIXTURES / "rope_scaling.npz") as arrays:
    ids, want = arrays["ids"], arrays[f"{name}/logits"]
    changes = json.loads(str(arrays[f"{name}/config"]))
  raw = json.loads((directory / "config.json").read_text())
  del raw["rope_parameters"]
  (directory / "config.json").write_text(json.dumps(raw | changes))
  scaled = load_pretrained(str(directory))
  assert scaled.config.rope_scaling.original_length < ids.shape[1] or name == "linear"
  got = logits_of(scaled.config, scaled.params, ids)[0]
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
  plain = dataclasses.replace(scaled.config, rope_scaling=None)
  assert np.abs(logits_of(plain, scaled.params, ids)[0] - want).max() > 0.1


def test_compile_time_does_not_grow_with_depth():
  """Layers that differ in window and rotary base are still one scanned body."""
  config = model("gemma3").config
  deep = dataclasses.replace(config, num_layers=70, sliding=config.sliding * 10)

  def size(config):
    params = jax.eval_shape(functools.partial(decoder.init_params, config), jax.random.key(0))
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return logits_of.lower(config, params, ids).as_text().count("\n")

  assert size(deep) == size(config)


@pytest.mark.parametrize(("name", "depth"), [("gemma3", 2), ("smollm3", 4), ("deepseek_v3", 2)])
def test_trunk_of_the_first_layers(name, depth):
  """What a critic or a reward model starts from."""
  config, params = model(name).config.first(depth), model(name).params
  trunk = critic_params(params, depth)["trunk"]
  decoder.check_params(dataclasses.replace(config, tie_embeddings=True), trunk)
  assert [config.layer_window(i) for i in range(depth)] == [
    model(name).config.layer_window(i) for i in range(depth)
  ]
  if name == "deepseek_v3":
    with pytest.raises(ValueError, match="first 1 layers have no experts; use more than 1"):
      config.first(1)
