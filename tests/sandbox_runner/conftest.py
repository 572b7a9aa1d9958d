"""One pool for all tests of a backend."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import PoolConfig

BACKENDS = {
  "bwrap": {"backend": "bwrap"},
  "runc": {"backend": "docker", "runtime": "runc"},
  "runsc": {"backend": "docker", "runtime": "runsc"},
}
PARAMETERS = [
  pytest.param(name, marks=[pytest.mark.docker] if name != "bwrap" else []) for name in BACKENDS
]


@pytest.fixture
def open_directory() -> Iterator[Path]:
  """Any user may work in it; pytest's own directories are closed to others."""
  with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
    Path(name).chmod(0o777)
    yield Path(name)


@pytest.fixture(scope="session", params=PARAMETERS)
def driver(request, tmp_path_factory) -> Iterator[Driver]:
  audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
  made = Driver(PoolConfig(size=2, audit_path=str(audit), **BACKENDS[request.param]))
  yield made
  made.close()
