"""One set of weights for the tests of the engine."""

import jax
import pytest
from rollout_cases import MODEL

from ptjax.models.decoder import init_params


@pytest.fixture(scope="session")
def weights():
  return init_params(MODEL, jax.random.key(0))
