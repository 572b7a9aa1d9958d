"""The text of a program compiled for a TPU: loops, groups of devices, what is alive."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from ptjax.planning import liveness
from ptjax.planning.collectives import traffic
from ptjax.sharding.collectives import collectives
from ptjax.sharding.hlo import computations

TEXT = """HloModule jit_f, is_scheduled=true

%cond (p: (s32[], f32[256])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(5)
  %p = (s32[], f32[256]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %constant.1), direction=LT
}

%body (q: (s32[], f32[256])) -> (s32[], f32[256]) {
  %q = (s32[], f32[256]{0}) parameter(0)
  %x = f32[256]{0} get-tuple-element(%q), index=1
  %big = f32[1024]{0} broadcast(%x), dimensions={0}
  %chip = f32[4096]{0:T(256)S(1)} broadcast(%x), dimensions={0}
  %all-reduce.1 = f32[256]{0} all-reduce(%x), replica_groups=GROUPS, to_apply=%add
  %j = s32[] get-tuple-element(%q), index=0
  ROOT %out = (s32[], f32[256]{0}) tuple(%j, %all-reduce.1)
}

ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = f32[256]{0} negate(%a)
  %init = (s32[], f32[256]{0}) tuple(%zero, %start)
  %loop = (s32[], f32[256]{0}) while(%init), condition=%cond, body=%body
  ROOT %r = f32[256]{0} get-tuple-element(%loop), index=1
}
"""


def mesh() -> Mesh:
  return Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "tensor"))


@pytest.mark.parametrize(
  ("groups", "axes", "size"),
  [
    ("{{0,1,2,3},{4,5,6,7}}", ("tensor",), 4),
    ("[4,2]<=[2,4]T(1,0)", ("data",), 2),
    ("[2,4]<=[8]", ("tensor",), 4),
    ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ("data",), 2),
    ("mesh['axis_0'=8] {'axis_0'}", ("data", "tensor"), 8),
    ("mesh['axis_0'=8] {'axis_0':(2)4}", ("tensor",), 4),
  ],
)
def test_a_collective_in_a_loop_counts_as_often_as_it_runs(groups, axes, size):
  (flow,) = traffic(collectives(TEXT.replace("GROUPS", groups), mesh()))
  assert (flow.kind, flow.axes, flow.count, flow.dcn) == ("all-reduce", axes, 5, False)
  assert flow.sent == 5 * 2 * (size - 1) / size * 1024


def test_a_group_of_one_sends_nothing():
  text = TEXT.replace("GROUPS", "{{0},{1},{2},{3},{4},{5},{6},{7}}")
  assert traffic(collectives(text, mesh())) == []


def test_what_is_alive_at_the_peak():
  """The array that enters the loop, what the body makes beside it; nothing of the chip's own
  memory, and the loop's result is its input's memory."""
  live = liveness.temporaries(computations(TEXT.replace("GROUPS", "[2,4]<=[8]")))
  assert [(b.shape, b.nbytes) for b in live] == [("f32[1024]", 4096), ("f32[256]", 1024)]


def test_groups_that_reach_over_slices():
  class Chip:
    def __init__(self, number):
      self.id, self.slice_index = number, number // 4

  slices = Mesh(np.asarray([Chip(i) for i in range(8)]).reshape(2, 4), ("replica", "fsdp"))
  for groups, axes, dcn in (
    ("{{0,1,2,3},{4,5,6,7}}", ("fsdp",), False),
    ("[4,2]<=[2,4]T(1,0)", ("replica",), True),
  ):
    (flow,) = traffic(collectives(TEXT.replace("GROUPS", groups), slices))
    assert (flow.axes, flow.dcn) == (axes, dcn)
