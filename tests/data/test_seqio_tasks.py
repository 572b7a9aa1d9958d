"""A registered seqio task is a source like any other: read, resumed, trained on."""

import importlib.util
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from stock_templates import stock

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.config import DataConfig, encoder, open_data
from ptjax.data.packing import RowConfig, stack_rows
from ptjax.data.pipeline import Host
from ptjax.data.seqio_tasks import seqio_sources
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig

if importlib.util.find_spec("seqio") is None:
  pytest.skip("seqio is not installed; make install-seqio", allow_module_level=True)

CHAT = stock("qwen2_5")
ALONE = Host(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  return tmp_path_factory.mktemp("seqio")


def sources(directory, name, module="seqio_toys", **options):
  return seqio_sources(
    name, license="CC0-1.0", origin="made here", directory=directory, module=module, **options
  )


def test_a_task_is_read_in_full_and_once(directory, tmp_path):
  config = DataConfig(sources(directory, "toy_texts"), epochs=1)
  stream = open_data(config, tmp_path, seed=1).stream(encoder(config, CHAT), ALONE)
  first = stream.take(5)
  again = open_data(config, tmp_path, seed=1).stream(encoder(config, CHAT), ALONE)
  again.restore(json.loads(json.dumps(stream.state())))
  examples = first + again.take(100)
  texts = [CHAT.tokenizer.decode(e.tokens) for e in examples]
  assert len(texts) == 12
  assert sum("3+2<|im_end|>\n<|im_start|>assistant\n5<|im_end|>" in t for t in texts) == 1
  manifest = json.loads((tmp_path / "manifest.json").read_text())["data"]
  assert manifest[0]["origin"] == "seqio toy_texts, split train: made here"
  assert (manifest[0]["license"], manifest[0]["examples"]) == ("CC0-1.0", 12)


def test_a_mixture_keeps_its_rates(directory, tmp_path):
  config = DataConfig(sources(directory, "toy_ids_mixture"))
  stream = open_data(config, tmp_path, seed=1).stream(encoder(config, CHAT), ALONE)
  short = [len(e.tokens) == 4 for e in stream.take(80)]
  assert sum(short) == 20


def test_what_is_written_is_used_without_tensorflow(directory):
  found = sources(directory, "toy_texts")
  code = (
    "import sys; from ptjax.data.seqio_tasks import seqio_sources as s; "
    f"print(s('toy_texts', license='CC0-1.0', origin='made here', directory={str(directory)!r}))"
    "; assert 'tensorflow' not in sys.modules"
  )
  output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert output.stdout.strip() == repr(found)


def test_a_task_is_trained_on(directory, tmp_path):
  """12 sums by heart: the loss of the answers falls from about ln 260 = 5.6 to below 1."""
  config = DataConfig(sources(directory, "toy_texts"))
  rows = open_data(config, tmp_path, seed=1).row_stream(
    encoder(config, ChatTemplate(byte_tokenizer())), RowConfig(length=128, window=2), ALONE
  )
  model = DecoderConfig(
    vocab_size=260, d_model=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=64
  )
  params = nnx.to_pure_dict(nnx.state(decoder.Decoder(model, nnx.Rngs(0)), nnx.Param))
  optimizer = optax.adam(1e-2)

  def loss(params, batch):
    tokens_BT = jnp.asarray(batch.tokens_T)
    ids = decoder.Packed(
      tokens_BT, batch.positions_T, batch.segment_ids_T, jnp.zeros_like(tokens_BT)
    )
    hidden_BTD = decoder.bind(model, params)(ids)[:, :-1]
    logits = heads.logits(params, hidden_BTD.reshape(-1, model.d_model), model)
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens_BT[:, 1:].reshape(-1))
    mask = batch.action_mask_T[:, 1:].reshape(-1)
    return jnp.sum(nll * mask) / jnp.sum(mask)

  @jax.jit
  def step(params, state, batch):
    value, gradient = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value

  state, losses = optimizer.init(params), []
  for _ in range(40):
    params, state, value = step(params, state, stack_rows(rows.take(2)))
    losses.append(float(value))
  assert losses[0] > 4
  assert losses[-1] < 1


def test_refusals(directory):
  with pytest.raises(ValueError, match="Name the module that registers 'nowhere'"):
    sources(directory, "nowhere")
  with pytest.raises(ValueError, match=r"has the splits \['train'\], not 'test'"):
    sources(directory, "toy_ids", split="test")
