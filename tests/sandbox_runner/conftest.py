"""A pool for many tests, and the one way to run a coroutine in them."""

import asyncio
from collections.abc import Iterator

import pytest

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


BACKENDS = {
  "bwrap": {"backend": "bwrap"},
  "runc": {"backend": "docker", "runtime": "runc"},
  "runsc": {"backend": "docker", "runtime": "runsc"},
}
PARAMETERS = [
  pytest.param(name, marks=[pytest.mark.docker] if name != "bwrap" else []) for name in BACKENDS
]


@pytest.fixture(scope="session", params=PARAMETERS)
def driver(request, tmp_path_factory) -> Iterator[Driver]:
  audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
  made = Driver(PoolConfig(size=2, audit_path=str(audit), **BACKENDS[request.param]))
  yield made
  made.close()
