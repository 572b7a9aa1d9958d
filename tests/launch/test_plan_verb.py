"""The verb `plan`; the compiler's part is tested in tests/planning."""

import importlib.util
import json

import pytest

CONFIG = "configs/grpo_llama31_8b.py"


@pytest.fixture
def plan(python):
  return lambda *args: python("-m", "ptjax.launch", "plan", "--config", CONFIG, *args)


def test_an_unknown_slice_is_a_users_error(plan):
  result = plan("--topology", "v9:2x2")
  assert result.returncode == 2
  assert "v9:2x2" in result.stderr
  assert "v5p:2x2x1" in result.stderr


@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)
def test_an_estimate_as_json(plan):
  result = plan("--topology", "v5e:2x2", "--estimate", "--json", "-", "--config.pack.rows=4",
                "--config.engine.num_slots=4")  # fmt: skip
  tree = json.loads(result.stdout)
  assert result.returncode == 1, result.stderr
  assert not tree["fits"]
  assert tree["peak"] == sum(tree["parts"].values()) > tree["hbm"]
