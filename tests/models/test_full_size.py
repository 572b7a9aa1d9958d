"""Presets: the parameters that transformers counts."""

import functools
import json
import math

import jax
import pytest

from ptjax.models import decoder
from ptjax.models.presets import PRESETS, preset, shape_of

# The counts are those of transformers' models on the meta device, for DeepSeek-V3 with its 14,848
# routing corrections, which are buffers there.
COUNTS = {
  "Llama-3.1-8B": 8_030_261_248,
  "Qwen3-4B": 4_022_468_096,
  "gemma-2-2b": 2_614_341_888,
  "gemma-3-4b": 3_880_263_168,
  "Mixtral-8x7B": 46_702_792_704,
  "Qwen3-30B-A3B": 30_532_122_624,
  "gpt-oss-20b": 20_914_757_184,
  "DeepSeek-V3": 671_026_419_200,
  "Llama-3.1-70B": 70_553_706_496,
  "SmolLM2-135M": 134_515_008,
}


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_without_memory(name):
  config = preset(name)
  params = jax.eval_shape(functools.partial(decoder.init_params, config), jax.random.key(0))
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
  assert count == config.num_params == COUNTS[name]


def test_a_shape_by_name_or_by_its_file(tmp_path):
  path = tmp_path / "config.json"
  path.write_text(json.dumps(PRESETS["Qwen3-4B"]))
  assert shape_of("Qwen3-4B") == shape_of(str(path)) == shape_of(str(tmp_path))


def test_an_unknown_model_is_refused_with_the_known_ones():
  with pytest.raises(ValueError, match=r"'Llama-9' .*SmolLM2-135M.*DeepSeek-V3"):
    shape_of("Llama-9")
