"""Hugging Face model directories of the Llama family: `config.json` and safetensors shards."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors needs
import numpy as np
import safetensors

from ptjax.models.config import DecoderConfig

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_ARCHITECTURE = "LlamaForCausalLM"

# What the decoder computes: any other value of these keys would silently change the model.
_FIXED = {
  "hidden_act": "silu",
  "attention_bias": False,
  "mlp_bias": False,
  "sliding_window": None,
  "quantization_config": None,
  "partial_rotary_factor": 1.0,
}


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object from a file; ValueError with the path where there is none."""
  try:
    value = json.loads(path.read_text("utf-8"))
  except FileNotFoundError as error:
    raise ValueError(f"{path} is missing; the directory is no complete model") from error
  except ValueError as error:
    raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path} holds a {type(value).__name__}, expected a JSON object")
  return value


def _rope_theta(raw: Mapping[str, Any], path: pathlib.Path) -> float:
  """Base of the rotary frequencies, under either spelling: `rope_theta`, `rope_parameters`."""
  theta = raw.get("rope_theta", 10_000.0)
  for key in ("rope_scaling", "rope_parameters"):
    rope = dict(raw.get(key) or {})
    theta = rope.pop("rope_theta", theta)
    # Older files say `type`; some carry both.
    kinds = {rope.pop(k) for k in ("rope_type", "type") if k in rope} | {"default"}
    if kinds != {"default"} or rope:
      raise ValueError(f"{path}: {key} {raw[key]} is not supported; use a model without scaling")
  if not isinstance(theta, int | float) or not theta > 0:
    raise ValueError(f"{path}: rope_theta is {theta!r}, expected a positive number")
  return float(theta)


def decoder_config(directory: pathlib.Path) -> DecoderConfig:
  """Model config from `config.json`.

  Raises:
    ValueError: missing file or key, another architecture, or a feature that the decoder
      does not compute (biases, sliding window, rope scaling, quantised weights).
  """
  path = directory / "config.json"
  raw = read_json(path)
  architectures = raw.get("architectures") or []
  if architectures != [_ARCHITECTURE]:
    raise ValueError(f"{path}: architectures {architectures}; only {_ARCHITECTURE} is supported")
  for key, expected in _FIXED.items():
    if (value := raw.get(key, expected)) != expected:
      raise ValueError(f"{path}: {key} is {value!r}; only {expected!r} is supported")

  def number(key: str, kind: type = int, default: Any = None) -> Any:
    value = default if raw.get(key) is None else raw[key]
    if type(value) is not kind or not value > 0:
      raise ValueError(f"{path}: {key!r} is {value!r}, expected a positive {kind.__name__}")
    return value

  d_model, num_heads = number("hidden_size"), number("num_attention_heads")
  return DecoderConfig(
    vocab_size=number("vocab_size"),
    d_model=d_model,
    num_layers=number("num_hidden_layers"),
    num_heads=num_heads,
    num_kv_heads=number("num_key_value_heads", default=num_heads),
    head_dim=number("head_dim", default=d_model // num_heads),
    d_ff=number("intermediate_size"),
    rope_theta=_rope_theta(raw, path),
    norm_eps=number("rms_norm_eps", float),
    tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
    max_position=number("max_position_embeddings"),
  )


def weight_files(directory: pathlib.Path) -> dict[pathlib.Path, tuple[str, ...] | None]:
  """The safetensors files, in order, with the tensors the index puts in each.

  Returns:
    path -> names, or None for an unsharded file, whose own table is the only one.

  Raises:
    ValueError: no weights, or shards named by the index are missing.
  """
  if (directory / _INDEX).exists():
    shards: dict[pathlib.Path, list[str]] = {}
    for name, file in read_json(directory / _INDEX).get("weight_map", {}).items():
      if pathlib.PurePath(file).name != file:  # an index never reaches out of its directory
        raise ValueError(f"{directory / _INDEX}: {file!r} is not a plain file name")
      shards.setdefault(directory / file, []).append(name)
    missing = sorted(path.name for path in shards if not path.exists())
    if missing or not shards:
      raise ValueError(f"{directory}: shards {missing} of {_INDEX} are missing; download them")
    return {path: tuple(shards[path]) for path in sorted(shards)}
  if (directory / _SINGLE).exists():
    return {directory / _SINGLE: None}
  raise ValueError(f"{directory} holds neither {_SINGLE} nor {_INDEX}; convert to safetensors")


def _open_shards(directory: pathlib.Path) -> Iterator[tuple[Any, str]]:
  """Yields (open shard, tensor name) for every tensor; a damaged shard is a ValueError."""
  for path, names in weight_files(directory).items():
    try:
      with safetensors.safe_open(path, framework="numpy") as shard:
        held = set(shard.keys())
        for name in names or sorted(held):
          if name not in held:
            raise ValueError(f"{path}: tensor {name!r} of {_INDEX} is missing; download it again")
          yield shard, name
    except safetensors.SafetensorError as error:
      raise ValueError(f"{path} is damaged ({error}); download it again") from error


def tensor_shapes(directory: pathlib.Path) -> dict[str, tuple[int, ...]]:
  """Name -> shape of every tensor; reads the headers of the shards only.

  Raises:
    ValueError: a shard is missing, damaged or truncated, or lacks a tensor of the index.
  """
  return {n: tuple(shard.get_slice(n).get_shape()) for shard, n in _open_shards(directory)}


def stream_tensors(directory: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, [out, in] or [D] in the stored dtype), one tensor in memory at a time."""
  for shard, name in _open_shards(directory):
    yield name, shard.get_tensor(name)
