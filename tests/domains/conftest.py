"""Real sandboxes for the graders: one pool a test, opened by a fixture."""

import asyncio
import os

import pytest

from ptjax.envs.environment import Services
from sandbox_runner import Pool, PoolConfig
from sandbox_runner.images import describe, limits_of
from sandbox_runner.images.store import BUILD, find_tree


@pytest.fixture
def with_sandbox():
  """`with_sandbox(use)` runs the coroutine `use(services)` with a live pool."""

  def run(use):
    async def main():
      async with Pool(PoolConfig(size=4)) as pool:
        return await use(Services(sandbox=pool))

    return asyncio.run(main())

  return run


@pytest.fixture
def with_image():
  """`with_image(name, use)` does so with sandboxes that hold an image, which must be built."""

  def run(name, use):
    if find_tree(describe(name)) is None and not os.environ.get("PTJAX_REQUIRE_DOCKER"):
      pytest.skip(f"image {name} is not built; {BUILD} {name}")

    async def main():
      async with Pool(PoolConfig("bwrap", 2, image=name, limits=limits_of(name))) as pool:
        return await use(Services(images={name: pool}))

    return asyncio.run(main())

  return run
