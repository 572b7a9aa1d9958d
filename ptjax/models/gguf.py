"""GGUF files of the Llama family: header, model config, and dequantised tensors, one at a time.

The header is parsed here, with every length checked against the file, because a header that
lies is the usual form of a broken download; blocks are dequantised by the `gguf` library.
Format: the GGUF specification, version 3 (version 2 differs in nothing that is read here).
"""

import dataclasses
import math
import mmap
import pathlib
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import numpy as np

from ptjax.models.config import DecoderConfig

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = (  # by GGUF value type, as little-endian struct formats
  dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?")))
  | {10: "<Q", 11: "<q", 12: "<d"}
)  # fmt: skip

_GLOBAL_NAMES = {
  "token_embd.weight": "model.embed_tokens.weight",
  "output_norm.weight": "model.norm.weight",
  "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
  "attn_norm.weight": "input_layernorm.weight",
  "attn_q.weight": "self_attn.q_proj.weight",
  "attn_k.weight": "self_attn.k_proj.weight",
  "attn_v.weight": "self_attn.v_proj.weight",
  "attn_output.weight": "self_attn.o_proj.weight",
  "ffn_norm.weight": "post_attention_layernorm.weight",
  "ffn_gate.weight": "mlp.gate_proj.weight",
  "ffn_up.weight": "mlp.up_proj.weight",
  "ffn_down.weight": "mlp.down_proj.weight",
}


@dataclasses.dataclass(frozen=True)
class TensorInfo:
  """Where a tensor lies: `shape` slowest axis first, `offset` and `num_bytes` in the file."""

  name: str
  shape: tuple[int, ...]
  quantization: gguf.GGMLQuantizationType
  offset: int
  num_bytes: int


@dataclasses.dataclass(frozen=True)
class GGUFHeader:
  """All of a GGUF file but the weights: `metadata` by key, `tensors` by GGUF name."""

  path: pathlib.Path
  metadata: Mapping[str, Any]
  tensors: Mapping[str, TensorInfo]


class _Cursor:
  """Reads values from a buffer; a read beyond its end is a ValueError, never garbage."""

  def __init__(self, buffer: mmap.mmap):
    self.buffer, self.position = buffer, 0

  def take(self, num_bytes: int) -> bytes:
    end = self.position + num_bytes
    if end > len(self.buffer):
      raise ValueError(f"the header runs past the end of the file ({len(self.buffer)} bytes)")
    start, self.position = self.position, end
    return self.buffer[start:end]

  def scalar(self, kind: int) -> Any:
    if kind not in _SCALARS:
      raise ValueError(f"unknown value type {kind} at byte {self.position}")
    fmt = _SCALARS[kind]
    return struct.unpack(fmt, self.take(struct.calcsize(fmt)))[0]

  def u32(self) -> int:
    return self.scalar(4)

  def u64(self) -> int:
    return self.scalar(10)

  def string(self) -> str:
    # UnicodeDecodeError is a ValueError: `read_header` adds the file's name.
    return self.take(self.u64()).decode("utf-8")

  def value(self, kind: int) -> Any:
    if kind == _STRING:
      return self.string()
    if kind != _ARRAY:
      return self.scalar(kind)
    item, count = self.u32(), self.u64()
    if item in _SCALARS:  # at once: vocabularies hold one entry a token
      size = struct.calcsize(_SCALARS[item])
      return np.frombuffer(self.take(size * count), np.dtype(_SCALARS[item])).tolist()
    if item != _STRING:
      raise ValueError(f"array of unknown type {item} at byte {self.position}")
    return [self.string() for _ in range(count)]


def _tensor_info(cursor: _Cursor) -> TensorInfo:
  """One tensor record; its offset is still relative to the data section."""
  name, num_axes = cursor.string(), cursor.u32()
  if num_axes > 4:
    raise ValueError(f"tensor {name!r} has {num_axes} axes; GGUF allows 4")
  shape = tuple(cursor.u64() for _ in range(num_axes))[::-1]  # GGUF: fastest axis first
  kind, offset = cursor.u32(), cursor.u64()
  try:
    quantization = gguf.GGMLQuantizationType(kind)
  except ValueError as error:
    raise ValueError(f"tensor {name!r} has the unknown quantization {kind}") from error
  block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
  if not shape or shape[-1] % block:
    raise ValueError(f"tensor {name!r}: {shape} is not a multiple of {quantization.name}'s {block}")
  return TensorInfo(name, shape, quantization, offset, math.prod(shape) // block * block_bytes)


def _parse(buffer: mmap.mmap) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
  cursor = _Cursor(buffer)
  if (magic := cursor.take(4)) != _MAGIC:
    raise ValueError(f"it starts with {magic!r}, not {_MAGIC!r}")
  if (version := cursor.u32()) not in (2, 3):
    raise ValueError(f"version {version} is not supported; convert to version 3, little-endian")
  num_tensors, num_values = cursor.u64(), cursor.u64()
  metadata = {}
  for _ in range(num_values):
    key = cursor.string()
    metadata[key] = cursor.value(cursor.u32())
  infos = [_tensor_info(cursor) for _ in range(num_tensors)]
  alignment = metadata.get("general.alignment", 32)
  if not isinstance(alignment, int) or alignment < 1:
    raise ValueError(f"general.alignment is {alignment!r}")
  start = -(-cursor.position // alignment) * alignment
  tensors = {}
  for info in infos:
    if info.name in tensors:
      raise ValueError(f"tensor {info.name!r} appears twice")
    end = start + info.offset + info.num_bytes
    if end > len(buffer):
      raise ValueError(f"tensor {info.name!r} ends at byte {end}, the file at {len(buffer)}")
    tensors[info.name] = dataclasses.replace(info, offset=start + info.offset)
  return metadata, tensors


def read_header(path: pathlib.Path) -> GGUFHeader:
  """Parses metadata and tensor table; touches no weights.

  Raises:
    ValueError: the file is no GGUF, is damaged, or is truncated anywhere.
  """
  try:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
      metadata, tensors = _parse(buffer)
  except ValueError as error:  # an empty file cannot be mapped: a ValueError too
    raise ValueError(f"{path} is not a sound GGUF file: {error}; download it again") from error
  return GGUFHeader(pathlib.Path(path), metadata, tensors)


def decoder_config(header: GGUFHeader) -> DecoderConfig:
  """Model config from the metadata; tied embeddings where there is no output matrix.

  Raises:
    ValueError: another architecture, or a feature that the decoder does not compute.
  """
  metadata, path = header.metadata, header.path

  def typed(key: str, kind: type, default: Any = None) -> Any:
    value = metadata.get(key, default)
    if type(value) is not kind or (kind is not str and not value > 0):
      raise ValueError(f"{path}: metadata {key!r} is {value!r}, expected a valid {kind.__name__}")
    return value

  if (architecture := typed("general.architecture", str)) != "llama":
    raise ValueError(f"{path}: architecture {architecture!r} is not supported; use a llama GGUF")
  if (scaling := metadata.get("llama.rope.scaling.type", "none")) != "none":
    raise ValueError(f"{path}: rope scaling {scaling!r} is not supported; use an unscaled model")
  if experts := metadata.get("llama.expert_count", 0):
    raise ValueError(f"{path}: {experts} experts; only dense models are supported")
  if window := metadata.get("llama.attention.sliding_window", 0):
    raise ValueError(f"{path}: sliding window {window} is not supported")
  if "token_embd.weight" not in header.tensors:
    raise ValueError(f"{path}: tensor 'token_embd.weight' is missing; convert the model again")
  d_model = typed("llama.embedding_length", int)
  num_heads = typed("llama.attention.head_count", int)
  head_dim = typed("llama.attention.key_length", int, d_model // num_heads)
  for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
    if (width := metadata.get(key, head_dim)) != head_dim:
      raise ValueError(f"{path}: {key!r} is {width}, but heads are {head_dim} wide; unsupported")
  return DecoderConfig(
    vocab_size=header.tensors["token_embd.weight"].shape[0],
    d_model=d_model,
    num_layers=typed("llama.block_count", int),
    num_heads=num_heads,
    num_kv_heads=typed("llama.attention.head_count_kv", int, num_heads),
    head_dim=head_dim,
    d_ff=typed("llama.feed_forward_length", int),
    rope_theta=typed("llama.rope.freq_base", float, 10_000.0),
    norm_eps=typed("llama.attention.layer_norm_rms_epsilon", float),
    tie_embeddings="output.weight" not in header.tensors,
    max_position=typed("llama.context_length", int),
  )


def rotate_half_layout(weight: np.ndarray, num_heads: int) -> np.ndarray:
  """Undoes GGUF's reordering of query and key rows, from rotated pairs to rotated halves.

  GGUF's llama rotates neighbours (2i, 2i+1) of a head, Hugging Face rotates (i, i + H/2):
  row 2i+j of a GGUF head is row j*H/2+i here. For H=4: 0 1 2 3 -> 0 2 1 3.

  Args:
    weight: [num_heads * H, D].
  """
  out, width = weight.shape
  pairs = weight.reshape(num_heads, out // num_heads // 2, 2, width)
  return pairs.swapaxes(1, 2).reshape(out, width)


def _huggingface_name(header: GGUFHeader, name: str) -> str:
  if block := re.fullmatch(r"blk\.(\d+)\.(.+)", name):
    if block[2] in _BLOCK_NAMES:
      return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}"
  elif name in _GLOBAL_NAMES:
    return _GLOBAL_NAMES[name]
  raise ValueError(f"{header.path}: tensor {name!r} is not supported by the Llama decoder")


def tensor_shapes(header: GGUFHeader) -> dict[str, tuple[int, ...]]:
  """Hugging Face name -> shape of every tensor, slowest axis first; reads no weights.

  Raises:
    ValueError: a tensor that the Llama family does not have, such as a bias.
  """
  return {_huggingface_name(header, name): info.shape for name, info in header.tensors.items()}


def read_tensor(header: GGUFHeader, name: str) -> np.ndarray:
  """f32 values of one tensor, dequantised, as laid out in the file."""
  info = header.tensors[name]
  raw = np.fromfile(header.path, np.uint8, count=info.num_bytes, offset=info.offset)
  rows = raw.reshape(gguf.quant_shape_to_byte_shape(info.shape, info.quantization))
  try:
    return gguf.dequantize(rows, info.quantization)
  except NotImplementedError as error:
    kind = info.quantization.name
    raise ValueError(
      f"{header.path}: no dequantiser for {kind} (tensor {name!r}); use Q8_0, Q4_1 or F16"
    ) from error


def stream_tensors(header: GGUFHeader, config: DecoderConfig) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (Hugging Face name, f32[out, in] or f32[D]), one tensor in memory at a time."""
  heads = {"attn_q.weight": config.num_heads, "attn_k.weight": config.num_kv_heads}
  for name in header.tensors:
    weight = read_tensor(header, name)
    num_heads = heads.get(name.split(".", 2)[-1])
    yield (
      _huggingface_name(header, name),
      weight if num_heads is None else rotate_half_layout(weight, num_heads),
    )
