"""Logical axes to mesh axes. Each network has a rule table of its own."""

import dataclasses
import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MeshAxes = tuple[str, ...]

BATCH_BESIDE_EMBED = "batch_beside_embed"
LENGTH_BESIDE_EMBED = "length_beside_embed"
"""Rows and tokens of an activation whose width is still split like the parameters'."""


@dataclasses.dataclass(frozen=True)
class Rules:
  """Mesh axes of each logical axis; an empty tuple copies along that axis.

  Attributes:
    batch: rows of a batch, slots of the rollout engine.
    length: positions of a row.
    embed: model width of the parameters.
    vocab: rows of the token table.
    heads: query heads.
    kv_heads: key/value heads.
    head: width of a head, and what is normalised within one.
    latent: width of the latents of latent attention.
    expert: experts of a mixture.
    experts: their scores in the router.
    expert_ff: width of one expert.
    ff: feed-forward width.
    layers: the layer axis that the forward pass scans over.
  """

  batch: MeshAxes = ("replica", "data", "fsdp")
  length: MeshAxes = ("context",)
  embed: MeshAxes = ("fsdp",)
  vocab: MeshAxes = ("tensor",)
  heads: MeshAxes = ("tensor",)
  kv_heads: MeshAxes = ("tensor",)
  head: MeshAxes = ()
  latent: MeshAxes = ()
  expert: MeshAxes = ("expert",)
  experts: MeshAxes = ()
  expert_ff: MeshAxes = ("tensor",)
  ff: MeshAxes = ("tensor",)
  layers: MeshAxes = ()

  def check(self, mesh: Mesh) -> None:
    """Raises ValueError where a rule names an axis that the mesh lacks."""
    for field in dataclasses.fields(self):
      unknown = set(getattr(self, field.name)) - set(mesh.axis_names)
      if unknown:
        raise ValueError(
          f"rule {field.name}={getattr(self, field.name)} names {sorted(unknown)}; the mesh has "
          f"the axes {mesh.axis_names}"
        )

  def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
    """The partition of an array whose dimensions are named by `axes`.

    Raises:
      ValueError: an axis without a rule, or two dimensions on one mesh axis.
    """
    parts = [() if axis is None else self._mesh_axes(axis) for axis in axes]
    used = [name for part in parts for name in part]
    if len(used) != len(set(used)):
      raise ValueError(
        f"axes {axes} map to mesh axes {parts}: a mesh axis is used twice; change one of the rules"
      )
    return PartitionSpec(*(part if part else None for part in parts))

  def _mesh_axes(self, axis: str) -> MeshAxes:
    if axis == BATCH_BESIDE_EMBED:
      return tuple(name for name in self.batch if name not in self.embed)
    if axis == LENGTH_BESIDE_EMBED:
      return tuple(name for name in self.length if name not in self.embed)
    if axis not in {field.name for field in dataclasses.fields(self)}:
      raise ValueError(f"no sharding rule for the logical axis {axis!r}; add one to Rules")
    return getattr(self, axis)

  def sharding(
    self, mesh: Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...]
  ) -> NamedSharding:
    """The sharding of an array of that shape; refuses a size that does not divide."""
    self.check(mesh)
    spec = self.spec(axes)
    for axis, size in zip(axes, shape, strict=True):
      names = () if axis is None else self._mesh_axes(axis)
      places = math.prod(mesh.shape[name] for name in names)
      if size % places:
        raise ValueError(
          f"logical axis {axis!r} of size {size} (shape {shape}) is not divisible by the "
          f"{places} devices of mesh axes {names}; change the mesh or the rule {axis}={names}"
        )
    return NamedSharding(mesh, spec)


def tree_shardings(rules: Rules, mesh: Mesh, axes_tree, shape_tree):
  """A sharding for each leaf of `shape_tree`, whose axes are named in `axes_tree`."""
  return jax.tree.map(
    lambda leaf, axes: rules.sharding(mesh, axes, leaf.shape), shape_tree, axes_tree
  )


@dataclasses.dataclass(frozen=True)
class Constrainer:
  """Pins an activation to its rule inside `jit`; knows the mesh, for what is sharded by hand."""

  rules: Rules
  mesh: Mesh

  def __post_init__(self):
    self.rules.check(self.mesh)

  def __call__(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.rules.spec(axes)))
