import pytest
from tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory):
  """A tiny untied model whose samples are mostly digits."""
  return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tied_source(tmp_path_factory):
  return write_tiny_model(tmp_path_factory.mktemp("tied"), tied=True)
