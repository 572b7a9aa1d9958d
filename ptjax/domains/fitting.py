"""A domain without the tasks whose prompts are too long."""

import dataclasses
from collections.abc import Callable, Sequence

from ptjax.domains.domain import Domain
from ptjax.envs.environment import Message, Split, Task

TRIES = 100
_STRIDE = 2_654_435_761  # odd, so that the seeds tried are all different


def fitting(domain: Domain, tokens: Callable[[Sequence[Message]], int], limit: int) -> Domain:
  """The domain, with the first task that fits in the place of one that does not.

  Args:
    domain: whose tasks vary in length.
    tokens: how many the messages before the first action are.
    limit: most of them.

  Raises:
    ValueError: when a task is made, where none of `TRIES` fits.
  """

  def make_task(seed: int, split: Split) -> Task:
    shortest = None
    for number in range(TRIES):
      task = domain.make_task((seed + number * _STRIDE) % 2**32, split)
      length = tokens(task.messages)
      if length <= limit:
        return task
      shortest = length if shortest is None else min(shortest, length)
    raise ValueError(
      f"{domain.name}: the shortest of {TRIES} prompts has {shortest} tokens, {limit} are allowed; "
      f"raise engine.max_length, or leave the domain out"
    )

  return dataclasses.replace(domain, make_task=make_task)
