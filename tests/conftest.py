"""Every test sees 8 CPU devices, on any machine; tests that need docker say so.

The variables are set before JAX is imported, and reach the processes that tests start.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if "jax" in sys.modules:
  raise RuntimeError("a pytest plugin imported jax before tests/conftest.py set its devices")

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# Most of a tiny run is compilation: what one test compiled serves the next, and the processes that
# it starts. Each worker has its own, since JAX writes an entry in place.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
  Path(__file__).parent.parent
  / ".pytest_cache/programs"
  / os.environ.get("PYTEST_XDIST_WORKER", "alone")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
# A figure is drawn without a display.
os.environ["MPLBACKEND"] = "agg"

REQUIRE_DOCKER = "PTJAX_REQUIRE_DOCKER"
"""Where it is set, as in CI, a test marked docker runs, and fails without a daemon."""


def docker_answers() -> bool:
  if shutil.which("docker") is None:
    return False
  try:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
  except subprocess.TimeoutExpired:
    return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  marked = [item for item in items if item.get_closest_marker("docker")]
  if not marked or os.environ.get(REQUIRE_DOCKER) or docker_answers():
    return
  for item in marked:
    item.add_marker(pytest.mark.skip(reason=f"no docker daemon answers ({REQUIRE_DOCKER} unset)"))


def pytest_configure(config: pytest.Config) -> None:
  config.addinivalue_line("markers", "golden(family, dtypes=...): once per golden case and dtype")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  marker = metafunc.definition.get_closest_marker("golden")
  if marker:
    from golden_cases import load  # imports jax, so not before the variables are set

    metafunc.parametrize("case", list(load(*marker.args, **marker.kwargs)))


def pytest_terminal_summary(terminalreporter) -> None:
  """Cases and backends of the hostile suite, if it was run."""
  from hostile_table import differences, lines

  stats = terminalreporter.stats
  outcomes = [
    (report.nodeid, outcome)
    for outcome in ("passed", "skipped", "failed", "error")
    for report in stats.get(outcome, ())
    if hasattr(report, "nodeid")
  ]
  if table := lines(outcomes, differences()):
    terminalreporter.section("hostile suite")
    for line in table:
      terminalreporter.write_line(line)
