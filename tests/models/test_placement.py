"""Weights placed straight onto a mesh: the same arrays, and little memory beside them."""

import json
import pathlib
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from ptjax.models import decoder, importer
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules, tree_shardings

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mesh():
  return make_mesh(MeshConfig(fsdp=2, tensor=2, data=2))


@pytest.mark.parametrize(
  ("source", "dtype"),
  [
    ("tiny_llama", ml_dtypes.bfloat16),
    ("families/qwen3_moe", np.float32),  # experts: two leading axes
    ("families/gpt_oss", np.float32),  # two leaves from one tensor
    ("families/deepseek_v3", np.float32),  # two stacks
  ],
)
def test_same_arrays_where_the_rules_say(mesh, source, dtype):
  path = str(FIXTURES / source)
  want = importer.load_pretrained(path, dtype)
  got = importer.load_sharded(path, mesh, Rules(), dtype)
  assert (got.config, got.content_hash) == (want.config, want.content_hash)
  axes = decoder.logical_axes(want.config)
  shardings = tree_shardings(Rules(), mesh, axes, want.params)
  assert jax.tree.structure(got.params) == jax.tree.structure(want.params)
  for have, expected, sharding in zip(
    *map(jax.tree.leaves, (got.params, want.params, shardings)), strict=True
  ):
    assert have.sharding.is_equivalent_to(sharding, have.ndim)
    assert have.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(np.asarray(have), expected)


def test_a_split_layer_axis():
  mesh = make_mesh(MeshConfig(data=2, fsdp=4))
  path, rules = str(FIXTURES / "tiny_llama"), Rules(layers=("data",))
  want, got = importer.load_pretrained(path), importer.load_sharded(path, mesh, rules)
  jax.tree.map(np.testing.assert_array_equal, got.params, want.params)
  wq = got.params["layers"]["attn"]["wq"]
  assert wq.sharding.shard_shape(wq.shape)[0] == 1


def test_what_does_not_divide_is_refused_before_anything_is_read():
  mesh = make_mesh(MeshConfig(tensor=8, fsdp=1))
  with pytest.raises(ValueError, match=r"'kv_heads' of size 2 .* not divisible"):
    importer.load_sharded(str(FIXTURES / "tiny_llama"), mesh, Rules())


@pytest.mark.slow
def test_peak_of_host_memory(tmp_path):
  """A tenth of 7B: 32 layers in eight shards, on two processes with half of the weights each.

  The bound holds in a process of its own, since a peak of resident memory never falls.
  """
  command = [sys.executable, "-m", "benchmarks.import_memory", "--shrink", "4"]
  command += ["--shard-mb", "100", "--processes", "2", "--directory", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
  assert done.returncode == 0, done.stderr[-2000:]
  records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
  assert len(records) == 2
  for record in records:
    assert record["model_bytes"] > 5 * record["shard_bytes"] > 4e8
    assert record["share_bytes"] < 0.51 * record["model_bytes"]
    # Less than its own arrays would mean that the peak was not that of the import.
    assert record["share_bytes"] < record["peak_bytes"] <= record["bound_bytes"]
