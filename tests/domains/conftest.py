"""A real sandbox for the graders: one pool a test, opened by the fixture `with_sandbox`."""

import asyncio

import pytest

from ptjax.envs.environment import Services
from sandbox_runner import Pool, PoolConfig


@pytest.fixture
def with_sandbox():
  """`with_sandbox(use)` runs the coroutine `use(services)` with a live pool."""

  def run(use):
    async def main():
      async with Pool(PoolConfig(size=4)) as pool:
        return await use(Services(sandbox=pool))

    return asyncio.run(main())

  return run
