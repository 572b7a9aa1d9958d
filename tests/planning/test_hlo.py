"""The text of a compiled program: bytes, loops, groups of devices, what is alive."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from ptjax.planning import collectives, hlo, liveness

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
  (flow,) = collectives.traffic(hlo.parse(TEXT.replace("GROUPS", groups)), mesh())
  assert (flow.kind, flow.axes, flow.count, flow.dcn) == ("all-reduce", axes, 5, False)
  assert flow.sent == 5 * 2 * (size - 1) / size * 1024


def test_a_group_of_one_sends_nothing():
  text = TEXT.replace("GROUPS", "{{0},{1},{2},{3},{4},{5},{6},{7}}")
  assert collectives.traffic(hlo.parse(text), mesh()) == []


def test_what_is_alive_at_the_peak():
  """The array that enters the loop, what the body makes beside it; nothing of the chip's own
  memory, and the loop's result is its input's memory."""
  live = liveness.temporaries(hlo.parse(TEXT.replace("GROUPS", "[2,4]<=[8]")))
  assert [(b.shape, b.nbytes) for b in live] == [("f32[1024]", 4096), ("f32[256]", 1024)]


@pytest.mark.parametrize(
  ("shape", "nbytes"),
  [("bf16[2,3]{1,0}", 12), ("(f32[4], s32[], pred[8])", 28), ("f8e4m3fn[16]", 16), ("u32[]", 4)],
)
def test_bytes_of_types(shape, nbytes):
  assert hlo.array_bytes(shape) == nbytes


def test_text_that_is_no_program_is_refused():
  with pytest.raises(ValueError, match="no entry"):
    hlo.parse("HloModule x")
