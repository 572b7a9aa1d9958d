"""Writes a model as a Hugging Face directory, which transformers and vLLM load."""

import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from ptjax.models import huggingface, weight_map
from ptjax.models.config import DecoderConfig

_DTYPES = {
  "float32": np.dtype(np.float32),
  "float16": np.dtype(np.float16),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_COPIED = (
  "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
  "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
  "chat_template.json",
)  # fmt: skip


def export_model(
  config: DecoderConfig,
  params: Mapping[str, Any],
  directory: pathlib.Path,
  source: pathlib.Path,
  *,
  dtype: str = "stored",
  shard_bytes: int = 5 * 10**9,
) -> None:
  """Writes weights, `config.json` and, from a Hugging Face source, the tokenizer's files.

  Args:
    config: of the model.
    params: the decoder's tree; leaves may be on any device.
    directory: must be empty or not there yet.
    source: what the model was loaded from, a Hugging Face directory or a GGUF file.
    dtype: float32, bfloat16, float16, or `stored`: each tensor in the dtype that it has in the
      source (float32 where that is a GGUF file). Parameters that were loaded and not trained
      come back bit for bit.
    shard_bytes: weights of more bytes are cut into shards, one of which is in memory at a time.

  Raises:
    ValueError: another dtype, a directory with files in it, or a GGUF file that is no Llama.
  """
  if dtype not in (*_DTYPES, "stored"):
    raise ValueError(f"dtype is {dtype!r}; use one of stored, {', '.join(_DTYPES)}")
  if directory.exists() and any(directory.iterdir()):
    raise ValueError(f"{directory} is not empty; export to a new directory")
  directory.mkdir(parents=True, exist_ok=True)
  dtypes = tensor_dtypes(config, source, dtype)
  _write_weights(stored_tensors(config, params, dtypes), _sizes(config, dtypes), directory,
                 shard_bytes)  # fmt: skip
  if source.is_dir():
    for name in _COPIED:
      if (source / name).exists():
        shutil.copyfile(source / name, directory / name)
  raw = _raw_config(config, source)
  if dtype != "stored" or not source.is_dir():
    raw.pop("torch_dtype", None)  # the older spelling
    raw["dtype"] = dtypes["model.embed_tokens.weight"].name
  (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def tensor_dtypes(config: DecoderConfig, source: pathlib.Path, dtype: str) -> dict[str, np.dtype]:
  """The dtype that each tensor is written in, by name."""
  names = dict.fromkeys(name for name, _ in weight_map.slots(config))
  if dtype != "stored":
    return dict.fromkeys(names, _DTYPES[dtype])
  if not source.is_dir():
    return dict.fromkeys(names, _DTYPES["float32"])
  kinds = huggingface.tensor_kinds(source)
  for name in names:
    if kinds[name] not in _STORED:
      raise ValueError(f"{source}: tensor {name!r} is {kinds[name]}; give another dtype")
  return {name: _DTYPES[_STORED[kinds[name]]] for name in names}


def stored_tensors(
  config: DecoderConfig, params: Mapping[str, Any], dtypes: Mapping[str, np.dtype]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (Hugging Face name, array) in the file's layout, one in memory at a time."""
  parts: dict[str, list[weight_map.Slot]] = {}
  for name, slot in weight_map.slots(config):
    parts.setdefault(name, []).append(slot)
  for name, slots in parts.items():
    tensor = np.empty(slots[0].stored, dtypes[name])
    for slot in slots:
      leaf: Any = params
      for key in slot.path:
        leaf = leaf[key]
      slot.view(tensor)[...] = np.asarray(leaf[slot.index])
    yield name, tensor


def _sizes(config: DecoderConfig, dtypes: Mapping[str, np.dtype]) -> dict[str, int]:
  return {
    name: int(np.prod(slot.stored)) * dtypes[name].itemsize
    for name, slot in weight_map.slots(config)
  }


def _write_weights(
  tensors: Iterator[tuple[str, np.ndarray]],
  sizes: Mapping[str, int],
  directory: pathlib.Path,
  shard_bytes: int,
) -> None:
  shards, room = [0], shard_bytes
  for size in sizes.values():
    if size > room and shards[-1]:
      shards.append(0)
      room = shard_bytes
    shards[-1] += 1
    room -= size
  if len(shards) == 1:
    _save(dict(tensors), directory / "model.safetensors")
    return
  weight_map_of: dict[str, str] = {}
  for number, count in enumerate(shards, 1):
    file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
    shard = dict(next(tensors) for _ in range(count))
    weight_map_of |= dict.fromkeys(shard, file)
    _save(shard, directory / file)
  index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map_of}
  (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _save(tensors: dict[str, np.ndarray], path: pathlib.Path) -> None:
  # transformers refuses files that do not name their framework.
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def _raw_config(c: DecoderConfig, source: pathlib.Path) -> dict[str, Any]:
  """The source's `config.json`, or for a GGUF file one of the Llama family."""
  if source.is_dir():
    raw = huggingface.read_json(source / "config.json")
    # Its further layers are not loaded, hence not written.
    return raw | ({"num_nextn_predict_layers": 0} if c.family == "deepseek_v3" else {})
  if c.family != "llama" or c.rope_scaling is not None:
    raise ValueError(f"{source}: only a plain Llama GGUF file can be exported")
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": c.vocab_size,
    "hidden_size": c.d_model,
    "intermediate_size": c.d_ff,
    "num_hidden_layers": c.num_layers,
    "num_attention_heads": c.num_heads,
    "num_key_value_heads": c.num_kv_heads,
    "head_dim": c.head_dim,
    "hidden_act": "silu",
    "max_position_embeddings": c.max_position,
    "rms_norm_eps": c.norm_eps,
    "rope_theta": c.rope_theta,
    "tie_word_embeddings": c.tie_embeddings,
  }
