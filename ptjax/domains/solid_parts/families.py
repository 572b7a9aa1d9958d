"""Families of parts: each draws a specification in words and the solid that it asks for.

Every solid leaves a good part of its bounding box empty, so that the box is no answer. Holes reach
one millimetre out of what they pierce, for faces that coincide have no inside.
"""

import math
import random
from collections.abc import Callable

from ptjax.domains.solid_parts.csg import Tree, box, cylinder, difference, union

Part = tuple[str, Tree]  # specification, solid


def plate(rng: random.Random) -> Part:
  """A plate with a pocket from above and a hole near each corner."""
  x, y, z = rng.randrange(60, 121, 10), rng.randrange(40, 81, 10), rng.randrange(6, 13, 2)
  inset, radius = rng.choice((6, 8)), rng.choice((2, 3, 4))
  depth = z - rng.choice((2, 3))
  pocket = (x - 4 * inset, y - 4 * inset, depth + 1)
  holes = [
    cylinder(z + 2, radius, (a, b, -1)) for a in (inset, x - inset) for b in (inset, y - inset)
  ]
  text = (
    f"A plate of {x} x {y} x {z} (x, y, z), one corner at the origin, the rest at positive "
    f"coordinates. A rectangular pocket {depth} deep is milled into its top; its edges are "
    f"{2 * inset} from the edges of the plate. Near each corner a vertical hole of diameter "
    f"{2 * radius} goes all the way through, its centre {inset} from both edges."
  )
  return text, difference(box((x, y, z)), box(pocket, (2 * inset, 2 * inset, z - depth)), *holes)


def bracket(rng: random.Random) -> Part:
  """Two plates at a right angle, a hole in each."""
  width, foot, height = rng.randrange(30, 61, 5), rng.randrange(40, 71, 5), rng.randrange(40, 71, 5)
  thick, first, second = rng.choice((4, 5, 6)), rng.randint(3, 6), rng.randint(3, 6)
  middle = (thick + foot) / 2
  upright = (thick + height) / 2
  text = (
    f"An L-shaped bracket. Its foot is a plate of {foot} x {width} x {thick} (x, y, z) with a "
    f"corner at the origin, the rest at positive coordinates. An upright plate of the thickness "
    f"{thick} stands at x from 0 to {thick}, over the whole width, up to z = {height}. A vertical "
    f"hole of diameter {2 * first} goes through the foot at x = {middle:g}, in the middle of the "
    f"width. A hole of diameter {2 * second} along x goes through the upright plate at z = "
    f"{upright:g}, in the middle of the width."
  )
  solid = union(box((foot, width, thick)), box((thick, width, height)))
  return text, difference(
    solid,
    cylinder(thick + 2, first, (middle, width / 2, -1)),
    cylinder(thick + 2, second, (-1, width / 2, upright), "x"),
  )


def flange(rng: random.Random) -> Part:
  """A pipe on a round flange with a circle of holes."""
  inner = rng.randint(6, 12)
  outer, rim = inner + rng.randint(3, 5), inner + rng.randint(18, 26)
  thick, height, count = rng.randint(5, 8), rng.randrange(30, 61, 5), rng.randint(3, 8)
  radius, circle = rng.randint(2, 3), (outer + rim) / 2
  angles = [2 * math.pi * i / count for i in range(count)]
  at = [(round(circle * math.cos(a), 4), round(circle * math.sin(a), 4), -1) for a in angles]
  text = (
    f"A flanged pipe around the z axis. The flange is a disc of diameter {2 * rim}, from z = 0 to "
    f"z = {thick}. On it stands a pipe of outer diameter {2 * outer}, up to z = {height}. A bore "
    f"of diameter {2 * inner} goes through pipe and flange. The flange has {count} vertical "
    f"through holes of diameter {2 * radius}, evenly spaced on a circle of diameter "
    f"{2 * circle:g}, the first of them on the positive x axis."
  )
  return text, difference(
    union(cylinder(thick, rim), cylinder(height, outer)),
    cylinder(height + 2, inner, (0, 0, -1)),
    *(cylinder(thick + 2, radius, corner) for corner in at),
  )


def shaft(rng: random.Random) -> Part:
  """A stepped shaft with a hole across its lowest step."""
  count = rng.randint(2, 4)
  radii = sorted(rng.sample(range(6, 21, 2), count), reverse=True)
  heights = [rng.randrange(12, 31, 3) for _ in radii]
  feet = [sum(heights[:i]) for i in range(count)]
  radius, middle = rng.choice((2, 3)), heights[0] / 2
  steps = "; ".join(f"diameter {2 * r}, length {h}" for r, h in zip(radii, heights, strict=True))
  text = (
    f"A shaft along the z axis of {count} steps, from z = 0 upwards: {steps}. A hole of diameter "
    f"{2 * radius} along x goes across the lowest step, through the axis, at z = {middle:g}."
  )
  parts = [cylinder(h, r, (0, 0, z)) for h, r, z in zip(heights, radii, feet, strict=True)]
  across = cylinder(2 * radii[0] + 2, radius, (-radii[0] - 1, 0, middle), "x")
  return text, difference(union(*parts), across)


def tray(rng: random.Random) -> Part:
  """An open box, divided."""
  x, y, z = rng.randrange(60, 121, 10), rng.randrange(40, 81, 10), rng.randrange(20, 41, 5)
  wall, count = rng.choice((2, 3)), rng.randint(1, 4)
  room = (x - wall * (count + 1)) / count
  text = (
    f"A tray, open above: outside {x} x {y} x {z} (x, y, z), one corner at the origin, the rest "
    f"at positive coordinates. Floor and walls are {wall} thick. "
    + (
      f"It is divided along x into {count} equal compartments by walls of the same thickness and "
      f"height, parallel to the y axis."
      if count > 1
      else "It has one compartment."
    )
  )
  rooms = [
    box((room, y - 2 * wall, z - wall + 1), (wall + i * (room + wall), wall, wall))
    for i in range(count)
  ]
  return text, difference(box((x, y, z)), *rooms)


def channel(rng: random.Random) -> Part:
  """A U-shaped channel with a hole through both legs."""
  length, width, height = rng.randrange(50, 101, 10), rng.randrange(30, 51, 5), rng.randint(25, 45)
  wall, radius = rng.randint(3, 5), rng.randint(3, 5)
  top = height - 3 * radius
  text = (
    f"A U-shaped channel along the x axis, open above, {length} long, {width} wide in y and "
    f"{height} high, one corner at the origin, the rest at positive coordinates. Floor and both "
    f"legs are {wall} thick, and both ends are open. A hole of diameter {2 * radius} along y goes "
    f"through both legs, in the middle of the length, at z = {top}."
  )
  inside = box((length + 2, width - 2 * wall, height), (-1, wall, wall))
  across = cylinder(width + 2, radius, (length / 2, -1, top), "y")
  return text, difference(box((length, width, height)), inside, across)


def funnel(rng: random.Random) -> Part:
  """A hollow cone on a spout."""
  wide, narrow = rng.randrange(30, 51, 2), rng.randrange(6, 13, 2)
  spout, cone, wall = rng.randrange(15, 31, 5), rng.randrange(25, 46, 5), rng.choice((2, 3))
  text = (
    f"A funnel around the z axis. From z = 0 to z = {spout} it is a pipe of outer diameter "
    f"{2 * narrow}. From there to z = {spout + cone} its outside widens evenly to the diameter "
    f"{2 * wide}. It is hollow and open at both ends: at every height the diameter of the inside "
    f"is {2 * wall} less than that of the outside."
  )
  out = union(cylinder(spout, narrow), cylinder(cone, narrow, (0, 0, spout), top=wide))
  # A millimetre past the end, along the same slope.
  slope = (wide - narrow) / cone
  hollow = cylinder(cone + 1, narrow - wall, (0, 0, spout), top=wide - wall + slope)
  bore = cylinder(spout + 2, narrow - wall, (0, 0, -1))
  return text, difference(out, union(bore, hollow))


def stairs(rng: random.Random) -> Part:
  """Solid stairs over an arch."""
  count, run = rng.randint(3, 7), rng.randrange(8, 15, 2)
  rise, width = rng.randrange(6, 13, 2), rng.randrange(20, 51, 10)
  radius = min(count * run // 4, (count // 2) * rise - 2)
  middle = count * run - radius - run // 2
  text = (
    f"Solid stairs of {count} steps that rise along the x axis, starting at the origin, the rest "
    f"at positive coordinates. Each step is {run} deep in x, {rise} high and {width} wide in y, "
    f"and goes down to z = 0. A tunnel with a round top, half a cylinder of radius {radius} around "
    f"an axis at x = {middle}, z = 0 along y, goes through the whole width."
  )
  steps = [box((run * (count - i), width, rise * (i + 1)), (run * i, 0, 0)) for i in range(count)]
  return text, difference(union(*steps), cylinder(width + 2, radius, (middle, -1, 0), "y"))


def table(rng: random.Random) -> Part:
  """A top on four round legs."""
  x, y, height = rng.randrange(80, 141, 20), rng.randrange(50, 91, 10), rng.randrange(50, 81, 10)
  thick, radius = rng.randrange(4, 9, 2), rng.randint(3, 5)
  inset = radius + rng.randint(2, 6)
  text = (
    f"A table. Its top is a plate of {x} x {y} x {thick} (x, y, z) with its upper face at z = "
    f"{height}, from the origin towards positive x and y. Four round legs of diameter "
    f"{2 * radius} stand on z = 0 and reach the top; the centre of each is {inset} from both edges "
    f"of its corner."
  )
  legs = [
    cylinder(height - thick / 2, radius, (a, b, 0))
    for a in (inset, x - inset)
    for b in (inset, y - inset)
  ]
  return text, union(box((x, y, thick), (0, 0, height - thick)), *legs)


def dumbbell(rng: random.Random) -> Part:
  """Two discs on a bar, bored along it."""
  disc, bar = rng.randrange(20, 41, 2), rng.randrange(8, 15, 2)
  thick, gap, bore = rng.randrange(8, 17, 2), rng.randrange(30, 71, 10), rng.randint(3, 6)
  length = 2 * thick + gap
  text = (
    f"A dumbbell along the x axis: two discs of diameter {2 * disc} and thickness {thick}, the "
    f"first from x = 0 to x = {thick}, and {gap} of free space between them, bridged by a round "
    f"bar of diameter {2 * bar}. All three are centred on the x axis. A hole of diameter "
    f"{2 * bore} goes through everything along the axis."
  )
  parts = [
    cylinder(thick, disc, axis="x"),
    cylinder(thick, disc, (thick + gap, 0, 0), "x"),
    cylinder(length, bar, axis="x"),
  ]
  return text, difference(union(*parts), cylinder(length + 2, bore, (-1, 0, 0), "x"))


FAMILIES: tuple[Callable[[random.Random], Part], ...] = (
  plate,
  bracket,
  flange,
  shaft,
  tray,
  channel,
  funnel,
  stairs,
  table,
  dumbbell,
)
