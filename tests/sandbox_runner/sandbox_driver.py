"""A pool and its event loop, for tests that are plain functions."""

import asyncio

from sandbox_runner import Pool, PoolConfig


class Driver:
  """A pool and the event loop that it lives in."""

  def __init__(self, config: PoolConfig):
    self._runner = asyncio.Runner()
    self.pool = Pool(config)
    self.run(self.pool.__aenter__())

  def run(self, coroutine):
    return self._runner.run(coroutine)

  def close(self) -> None:
    self.run(self.pool.__aexit__(None, None, None))
    self._runner.close()
