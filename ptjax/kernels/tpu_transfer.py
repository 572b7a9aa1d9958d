"""Arrays that travel to the next device of a ring while a Pallas kernel computes.

The kernel's first step starts the copies from this device's memory into that of the next, its last
step waits for them. What arrives is an output of the same call, and what leaves stays untouched
until all of it has left: two buffers, one read and one filled.

A device copies only when the next one is inside the same call, since its output is not its own
before: each tells the one before it that it is ready. None can be a call ahead of what it waits
for: the call ends when that has arrived. So one barrier serves all calls of a program.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BARRIER = 7  # the collective id of the ring's barrier


class Sent(NamedTuple):
  """What travels, and along which mesh axis of how many devices."""

  axis: str
  size: int
  arrays: tuple[jax.Array, ...]


def sending(kernel: Callable, sent: Sent, num_inputs: int, num_outputs: int) -> Callable:
  """The kernel with the copies around it.

  Args:
    kernel: of refs (inputs, outputs, scratch).
    sent: what travels.
    num_inputs, num_outputs: refs of each kind that are the kernel's own; those of the arrays that
      leave follow the inputs, of those that arrive the outputs, and two semaphores the scratch.
  """
  count = len(sent.arrays)

  def whole(*refs):
    inputs, refs = refs[:num_inputs], refs[num_inputs:]
    leaving, refs = refs[:count], refs[count:]
    outputs, refs = refs[:num_outputs], refs[num_outputs:]
    arriving, (*scratch, left, arrived) = refs[:count], refs[count:]
    me = jax.lax.axis_index(sent.axis)
    after = jax.lax.rem(me + 1, sent.size)
    before = jax.lax.rem(me + sent.size - 1, sent.size)
    copies = [
      pltpu.make_async_remote_copy(
        source, target, left.at[n], arrived.at[n], device_id={sent.axis: after}
      )
      for n, (source, target) in enumerate(zip(leaving, arriving, strict=True))
    ]

    @pl.when(_everywhere(lambda axis: 0))
    def _():
      barrier = pltpu.get_barrier_semaphore()
      pl.semaphore_signal(barrier, 1, device_id={sent.axis: before})
      pl.semaphore_wait(barrier, 1)
      for copy in copies:
        copy.start()

    kernel(*inputs, *outputs, *scratch)

    @pl.when(_everywhere(lambda axis: pl.num_programs(axis) - 1))
    def _():
      for copy in copies:
        copy.wait()

  return whole


def _everywhere(place: Callable) -> jax.Array:
  """Whether the step is at that place of each of the four axes of the grid."""
  at = [pl.program_id(axis) == place(axis) for axis in range(4)]
  return at[0] & at[1] & at[2] & at[3]
