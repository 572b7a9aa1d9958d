"""Low-rank adapters: W + scale A B beside frozen matrices (Hu et al., 2021).

Adapters are a tree of their own, `{"lora_a", "lora_b"}` in place of each adapted matrix and
nothing else, so that gradients, optimiser states and checkpoints hold them and not the base.
"""

import dataclasses
import fnmatch
import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.matrices import Adapted, input_axes, map_matrices

A, B = "lora_a", "lora_b"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Which matrices get adapters, and of which size.

  Attributes:
    rank: of A B.
    alpha: the product is scaled by alpha / rank.
    rank_stabilized: or by alpha / sqrt(rank), so that higher ranks still learn (Kalajdzievski,
      2023).
    targets: patterns of the adapted matrices' paths, such as `*/attn/wq`; `*` matches any text.
      The default takes all matrices of the blocks, experts included.
    base: how the frozen weights are kept: as the model's, or quantised with a scale for each
      output channel (as in QLoRA, Dettmers et al., 2023).
    seed: of A; B starts at 0.
  """

  rank: int = 16
  alpha: float = 32.0
  rank_stabilized: bool = False
  targets: tuple[str, ...] = ("*/attn/*", "*/mlp/*")
  base: Literal["float32", "int8", "fp8"] = "float32"
  seed: int = 0

  def __post_init__(self):
    if self.rank < 1:
      raise ValueError(f"lora.rank {self.rank} must be >= 1; leave model.lora out for none")
    if not self.alpha > 0:
      raise ValueError(f"lora.alpha {self.alpha} must be > 0: adapters scaled by 0 learn nothing")
    if not self.targets:
      raise ValueError("lora.targets is empty: nothing would train; name patterns like '*/attn/*'")

  @property
  def scale(self) -> float:
    """Factor of A B."""
    return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)


def _targets(config: LoraConfig, params: Mapping[str, Any]) -> set[str]:
  """Paths of the adapted matrices.

  Raises:
    ValueError: a pattern that no matrix has.
  """
  paths: list[str] = []
  map_matrices(lambda path, leaf: paths.append(path), params)
  chosen: set[str] = set()
  for pattern in config.targets:
    matched = fnmatch.filter(paths, pattern)
    if not matched:
      raise ValueError(
        f"lora.targets: no matrix matches {pattern!r}; the model has {', '.join(sorted(paths))}"
      )
    chosen.update(matched)
  return chosen


def _adapters(config: LoraConfig, model: DecoderConfig, make) -> Params:
  """`make(path, shape, logical axes, number of input axes)` for each adapted matrix."""
  shapes = decoder.param_shapes(model)
  axes = decoder.logical_axes(model)
  tree: Params = {}
  for path in sorted(_targets(config, shapes)):
    *parents, name = path.split("/")
    leaf, names, node = shapes, axes, tree
    for key in parents:
      leaf, names, node = leaf[key], names[key], node.setdefault(key, {})
    node[name] = make(path, leaf[name].shape, names[name], input_axes(path))
  return tree


def _lead(axes: tuple[str, ...]) -> int:
  """Leading axes that count matrices instead of being one's: layers, experts."""
  return sum(axis in ("layers", "expert") for axis in axes)


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_adapters(config: LoraConfig, model: DecoderConfig) -> Params:
  """Adapters at step 0: A normal with variance 1 / inputs, B zero, so the base is unchanged.

  The draw of a matrix depends on the seed and its path, not on the other targets.
  """

  def make(path, shape, axes, num_inputs):
    lead = _lead(axes)
    inputs, outputs = shape[: lead + num_inputs], shape[lead + num_inputs :]
    key = jax.random.fold_in(jax.random.key(config.seed), zlib.crc32(path.encode()) & 0x7FFFFFFF)
    a = jax.random.normal(key, (*inputs, config.rank), jnp.float32)
    return {
      A: a * math.prod(inputs[lead:]) ** -0.5,
      B: jnp.zeros((*shape[:lead], config.rank, *outputs), jnp.float32),
    }

  return _adapters(config, model, make)


def adapter_axes(config: LoraConfig, model: DecoderConfig) -> Params:
  """Logical axes of the adapters: those of their matrix; the rank is on every device."""

  def make(path, shape, axes, num_inputs):
    del path, shape
    lead = _lead(axes)
    return {
      A: (*axes[: lead + num_inputs], None),
      B: (*axes[:lead], None, *axes[lead + num_inputs :]),
    }

  return _adapters(config, model, make)


def adapt(base: Mapping[str, Any], trained: Mapping[str, Any], scale: float) -> dict[str, Any]:
  """The network of a frozen base and what trains: adapters, and leaves of its own (a head).

  Nothing is copied.
  """
  joined = dict(base)
  for name, value in trained.items():
    if not isinstance(value, Mapping):
      joined[name] = value
    elif value.keys() == {A, B}:
      joined[name] = Adapted(base[name], value[A], value[B], scale)
    else:
      joined[name] = adapt(base.get(name, {}), value, scale)
  return joined
