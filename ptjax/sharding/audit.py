"""Which collectives of a program gather an array whole that should stay split."""

from collections.abc import Iterable, Mapping

from ptjax.sharding.collectives import Collective

_GATHERS = ("all-gather", "all-to-all", "collective-permute", "collective-broadcast")


def gathered_whole(
  found: Iterable[Collective], arrays: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, Collective]]:
  """(name, collective) for every collective, sums aside, that has an array's global shape.

  Shapes are compared without axes of size 1 and without regard to order, and also with the first
  two axes merged: the compiler transposes and reshapes. Arrays of few, equal sizes may be confused,
  so a test gives its model sizes that differ.

  Args:
    found: of `collectives`.
    arrays: name and global shape of what must not be gathered: stacks of parameters, activations
      of all rows.
  """
  wanted = [(name, key) for name, shape in arrays.items() for key in _keys(shape)]
  return [
    (name, one)
    for one in found
    if one.kind in _GATHERS and one.axes
    for name, key in wanted
    if any(key in _keys(shape) for _, shape in one.shapes)
  ]


def _keys(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
  sizes = [n for n in shape if n > 1]
  merged = [sizes[0] * sizes[1], *sizes[2:]] if len(sizes) > 1 else sizes
  return {tuple(sorted(sizes)), tuple(sorted(merged))}
