"""One pool for all tests of a backend, and pools of images by their names."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox_driver import Driver

from sandbox_runner import PoolConfig
from sandbox_runner.images import describe
from sandbox_runner.images.store import BUILD, find_tree
from sandbox_runner.images.to_docker import has_image

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


@pytest.fixture(params=PARAMETERS)
def open_image(request) -> Iterator[Callable[[str], Driver]]:
  """Opens a pool of an image on this backend. Only in CI it is a failure that one is not built."""
  made = []

  def open_it(name: str) -> Driver:
    image = describe(name)
    docker = request.param != "bwrap"
    built = has_image(shutil.which("docker"), image) if docker else find_tree(image)
    if not built and not os.environ.get("PTJAX_REQUIRE_DOCKER"):
      pytest.skip(f"image {name} is not built; {BUILD} {name}")
    config = PoolConfig(size=1, image=name, limits=image.limits, **BACKENDS[request.param])
    made.append(Driver(config))
    return made[-1]

  yield open_it
  for driver in made:
    driver.close()
