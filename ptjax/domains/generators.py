"""The seeded generators of reasoning-gym, each with the scorer of its answers."""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

# The datasets are index-seeded and virtual, so that a large size costs nothing; but for these.
_NUM_TASKS = 2**31 - 1
_LISTED = {"acre": 2000, "gsm_symbolic": 20_000, "list_functions": 20_000, "word_ladder": 20_000}


def num_tasks(generator: str) -> int:
  """How many tasks its dataset is asked to have."""
  return _LISTED.get(generator, _NUM_TASKS)


@functools.cache
def package():
  """reasoning-gym, imported when first needed: the import takes seconds."""
  with warnings.catch_warnings():
    # A dependency of it warns when it is first compiled; that is not for our users to see.
    warnings.simplefilter("ignore", SyntaxWarning)
    import reasoning_gym
  return reasoning_gym


def dataset(generator: str, parameters: Mapping[str, Any], level: int | None = None):
  """Tasks by index.

  Args:
    generator: its name in the package.
    parameters: keyword arguments of its configuration.
    level: of every attribute of its curriculum, the highest that an attribute has where that is
      lower; None takes the generator's defaults.

  Raises:
    ValueError: an unknown generator, parameters that it refuses, a level without a curriculum.
  """
  factory = package().factory
  if generator not in factory.DATASETS:
    raise ValueError(
      f"reasoning-gym has no generator {generator!r}; it has {', '.join(sorted(factory.DATASETS))}"
    )
  fixed = {"seed": 0, "size": num_tasks(generator), **parameters}
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", ResourceWarning)  # a data file that a generator leaves open
      if level is None:
        return factory.create_dataset(generator, **fixed)
      return factory.DATASETS[generator][0](_at_level(factory, generator, level, fixed))
  except (AssertionError, TypeError) as error:
    raise ValueError(f"reasoning-gym {generator} refuses {dict(parameters)}: {error}") from error


def _at_level(factory, generator: str, level: int, fixed: Mapping[str, Any]):
  if level < 0:
    raise ValueError(f"level {level} of {generator} must be >= 0")
  if not factory.has_curriculum(generator):
    raise ValueError(f"reasoning-gym {generator} has no curriculum; leave its level out")
  curriculum = factory.create_curriculum(generator)
  for name, attribute in curriculum.attributes.items():
    curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
  return curriculum.generate_configuration(dict(fixed))
