"""One update on a matrix of meshes: the numbers of one device, and the collectives it costs.

The collectives are those of XLA's CPU backend, which sums a whole layer's gradient and takes a
slice where a TPU's scatters the sum; what is gathered is decided before they part.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from mesh_cases import LLAMA, MIXTRAL, QWEN, compiled, whole_arrays
from train_toys import assert_trees_close

from ptjax.sharding.audit import gathered_whole
from ptjax.sharding.collectives import collectives, totals
from ptjax.sharding.hlo import num_bytes
from ptjax.sharding.rules import Rules

TOLERANCE = 1e-5
FSDP, TENSOR, MIXED = {"fsdp": 8}, {"fsdp": 1, "tensor": 8}, {"data": 2, "fsdp": 2, "tensor": 2}


@functools.cache
def unsharded(model):
  return compiled(model, 1).update()


@functools.cache
def sharded(model, sizes):
  return compiled(model, 8, **dict(sizes))


def without_scalars(one):
  shapes = tuple((dtype, shape) for dtype, shape in one.shapes if shape)
  return dataclasses.replace(one, shapes=shapes, result_bytes=num_bytes(shapes))


def found_in(made):
  return collectives(made.gradient.as_text(), made.layout.mesh)


@pytest.mark.parametrize(
  ("model", "sizes"),
  [
    (LLAMA, FSDP),
    (LLAMA, TENSOR),
    (LLAMA, MIXED),
    (LLAMA, {"replica": 2, "fsdp": 4}),
    (QWEN, {"fsdp": 4, "tensor": 2}),
    (MIXTRAL, {"fsdp": 2, "expert": 4}),
  ],
  ids=["llama-fsdp", "llama-tensor", "llama-mixed", "llama-replica", "qwen", "mixtral-expert"],
)
def test_same_update_as_one_device(model, sizes):
  made = sharded(model, tuple(sizes.items()))
  if model.moe is None:  # the sort by expert is one over all rows, which are gathered for it
    assert not gathered_whole(found_in(made), whole_arrays(model)), totals(found_in(made))
  loss, grads, params = made.update()
  want_loss, want_grads, want_params = unsharded(model)
  np.testing.assert_allclose(loss, want_loss, rtol=0, atol=TOLERANCE)
  assert np.linalg.norm(jax.tree.leaves(jax.tree.map(np.linalg.norm, want_grads))) > 1e-2
  assert_trees_close(grads, want_grads, TOLERANCE)
  assert_trees_close(params, want_params, TOLERANCE)


# kind and axes -> executions and bytes of results on a device, in one micro-batch; scalars, the
# metrics, are left out.
PINNED = {
  tuple(FSDP.items()): {
    ("all-gather", ("fsdp",)): (84, 1_728_512),  # twice each layer, and the output matrix
    ("all-reduce", ("fsdp",)): (5, 903_424),  # the gradients of each layer, and of the rest
    ("all-to-all", ("fsdp",)): (2, 24_576),  # embeddings and their gradient
  },
  tuple(TENSOR.items()): {("all-reduce", ("tensor",)): (20, 2_903_040)},
  tuple(MIXED.items()): {
    ("all-gather", ("fsdp",)): (85, 908_544),
    ("all-reduce", ("data",)): (6, 245_760),
    ("all-reduce", ("data", "fsdp")): (5, 2_304),
    ("all-reduce", ("fsdp",)): (5, 450_560),
    ("all-reduce", ("tensor",)): (20, 725_760),
    ("all-to-all", ("fsdp",)): (2, 49_152),
  },
}


@pytest.mark.parametrize("sizes", PINNED, ids=["fsdp", "tensor", "mixed"])
def test_pinned_collectives(sizes):
  arrays = [without_scalars(one) for one in found_in(sharded(LLAMA, sizes))]
  sums = totals(one for one in arrays if one.shapes)
  have = {key: (total.count, total.result_bytes) for key, total in sums.items()}
  assert have == PINNED[sizes]


def test_a_wrong_rule_is_found():
  """Layers split over the mesh: every pass of the scan needs one that lies on another device."""
  made = compiled(LLAMA, 8, Rules(layers=("fsdp",), embed=()), data=2, fsdp=4)
  names = {name for name, _ in gathered_whole(found_in(made), whole_arrays(LLAMA))}
  assert "layers['mlp']['w_up']" in names
