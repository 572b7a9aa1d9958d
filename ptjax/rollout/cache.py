"""Where the keys and values of the engine's slots live."""

import dataclasses
import math

import jax
from jax.sharding import Mesh, NamedSharding

from ptjax.models.config import DecoderConfig
from ptjax.rollout.decode import Cache, empty_cache
from ptjax.sharding.mesh import on_cpu
from ptjax.sharding.rules import MeshAxes, Rules


@dataclasses.dataclass(frozen=True)
class CachePlacement:
  """The mesh of the engine's programs, and the rules that split the cache over it.

  Slots are split over the axes of `batch`, key/value heads over those of `kv_heads`. Where
  their number does not divide, the outer axes that it does divide are used, the others hold
  copies: an adaptive engine changes its width from call to call.
  """

  mesh: Mesh
  rules: Rules

  @property
  def on_cpu(self) -> bool:
    return on_cpu(self.mesh)

  def shardings(self, cache: Cache) -> Cache:
    """A sharding for each array of a cache, or of its shapes."""

    def of(x) -> NamedSharding:
      slots = self._dividing(self.rules.batch, x.shape[0])
      heads = self._dividing(self.rules.kv_heads, x.shape[1])
      return NamedSharding(self.mesh, jax.sharding.PartitionSpec(slots or None, heads or None))

    return jax.tree.map(of, cache)

  def place(self, cache: Cache) -> Cache:
    """The cache where it belongs; arrays that are there already are not copied."""
    return jax.device_put(cache, self.shardings(cache))

  def empty(self, config: DecoderConfig, slots: int, max_length: int) -> Cache:
    """A cache of zeros, made where it belongs."""
    shapes = self.abstract(config, slots, max_length)
    make = jax.jit(empty_cache, static_argnums=(0, 1, 2), out_shardings=self.shardings(shapes))
    return make(config, slots, max_length)

  def abstract(self, config: DecoderConfig, slots: int, max_length: int) -> Cache:
    """The cache of an engine as shapes with shardings."""
    shapes = jax.eval_shape(lambda: empty_cache(config, slots, max_length))
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      self.shardings(shapes),
    )

  def _dividing(self, axes: MeshAxes, size: int) -> MeshAxes:
    kept: MeshAxes = ()
    for axis in axes:
      if size % math.prod(self.mesh.shape[a] for a in (*kept, axis)):
        break
      kept = (*kept, axis)
    return kept
