import pytest
from tiny_model import write_tiny_model
from train_toys import toy_domain

from ptjax.domains.catalog import DOMAINS


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory):
  """A tiny untied model whose samples are mostly digits."""
  return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def toy_in_catalog(monkeypatch):
  """The domain `toy` is one that a configuration may name."""
  monkeypatch.setitem(DOMAINS, "toy", toy_domain)


@pytest.fixture(scope="session")
def tied_source(tmp_path_factory):
  return write_tiny_model(tmp_path_factory.mktemp("tied"), tied=True)
