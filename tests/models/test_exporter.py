"""What is loaded and exported comes back bit for bit, under the names and dtypes it had."""

import json
import pathlib

import ml_dtypes
import numpy as np
import pytest

from ptjax.models import huggingface
from ptjax.models.exporter import export_model
from ptjax.models.importer import load_pretrained

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
DIRECTORIES = [
  FIXTURES / "tiny_llama",
  *sorted(path for path in (FIXTURES / "families").iterdir() if path.is_dir()),
]


@pytest.mark.parametrize("source", DIRECTORIES, ids=lambda path: path.name)
def test_round_trip(source, tmp_path):
  model = load_pretrained(str(source))
  export_model(model.config, model.params, tmp_path / "out", source, shard_bytes=30_000)
  want, got = (dict(huggingface.stream_tensors(d)) for d in (source, tmp_path / "out"))
  assert got.keys() == want.keys()
  for name, tensor in want.items():
    assert got[name].dtype == tensor.dtype
    np.testing.assert_array_equal(got[name].view(np.uint8), tensor.view(np.uint8), name)
  again = load_pretrained(str(tmp_path / "out"))
  assert again.config == model.config
  assert len(huggingface.weight_files(tmp_path / "out")) > 1


def test_another_dtype_and_the_tokenizers_files(tmp_path):
  source = FIXTURES / "families" / "qwen3"
  model = load_pretrained(str(source))
  held = tmp_path / "held"
  held.mkdir()
  for file in source.iterdir():
    (held / file.name).write_bytes(file.read_bytes())
  (held / "tokenizer.json").write_text("{}")
  (held / "chat_template.jinja").write_text("{{ messages }}")
  export_model(model.config, model.params, tmp_path / "out", held, dtype="float32")
  (file,) = huggingface.weight_files(tmp_path / "out")
  assert file.name == "model.safetensors"
  tensors = dict(huggingface.stream_tensors(tmp_path / "out"))
  assert {t.dtype for t in tensors.values()} == {np.dtype(np.float32)}
  assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
  assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
  assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
  stored = dict(huggingface.stream_tensors(source))
  assert {t.dtype for t in stored.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_refusals(tmp_path):
  source = FIXTURES / "tiny_llama"
  model = load_pretrained(str(source))
  with pytest.raises(ValueError, match="dtype is 'int8'"):
    export_model(model.config, model.params, tmp_path / "out", source, dtype="int8")
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "kept").write_text("")
  with pytest.raises(ValueError, match="not empty; export to a new directory"):
    export_model(model.config, model.params, tmp_path / "out", source)
