"""What is printed and written of a plan, of one that fits and of one that does not."""

import dataclasses
import io

import pytest
from rich.console import Console

from ptjax.planning.compiler import Compiled, read_refusal, size
from ptjax.planning.liveness import Buffer
from ptjax.planning.memory import Live
from ptjax.planning.plan import Plan
from ptjax.planning.roofline import Roofline
from ptjax.planning.topology import GIB, parse_topology
from ptjax.report.plan_page import render
from ptjax.report.plan_table import print_plan

SHORT = (
  "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
  "(46.38G) exceeds available HBM (15.75G)."
)
LONG = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.1G of 15.75G hbm.
  1. Size: 12.00G
     Operator: op_name="jit(f)/mul"
     Shape: bf16[1024,1024]{1,0:T(8,128)(2,1)}
"""
PLAN = Plan(
  experiment="run <b>",
  model="Llama-3.1-8B",
  parameters=8_030_261_248,
  topology=parse_topology("v5e:2x2"),
  mesh={"fsdp": 4, "tensor": 1},
  residents={"policy parameters": 2 * GIB},
  programs=(
    Compiled(
      "decode", 3.0, 2 * GIB, GIB, GIB, 4 * GIB, (Buffer(GIB, "f32[8,32]", "fusion", "jit(d)/x"),)
    ),
  ),
  live=(Live("decode", {"policy parameters": 2 * GIB, "logits": 3 * GIB}),),
  roofline=(Roofline("decode", 3, 1e12, {"compute": 0.1, "hbm": 0.2, "ici": 0.0, "dcn": 0.0}),),
  seconds=5.0,
)


def printed(plan: Plan) -> str:
  out = io.StringIO()
  print_plan(plan, Console(file=out, width=200))
  return out.getvalue()


def test_a_plan_that_fits_says_where_it_is_fullest_and_how_long_a_step_takes():
  text = printed(PLAN)
  assert PLAN.fits
  assert "fits: at most 5.00 of 15.75 GiB a device, during decode" in text
  assert "at least 600.00 ms" in text
  assert "hbm" in text


def test_a_live_set_beyond_the_device_does_not_fit_though_every_program_does():
  live = Live("decode", {"policy parameters": 2 * GIB, "logits": 20 * GIB})
  plan = dataclasses.replace(
    PLAN, live=(live,), largest=(("KV cache", 9 * GIB),), hints=("pack.rows=4",)
  )
  text = printed(plan)
  assert not plan.fits
  assert "does not fit: 22.00 of 15.75 GiB" in text
  assert "f32[8,32]" in text
  assert "try: pack.rows=4" in text
  assert "9.00 GiB  KV cache" in text


@pytest.mark.parametrize(("text", "needed"), [(SHORT, 46.38), (LONG, 20.1)])
def test_the_compilers_refusal_is_read(text, needed):
  error = read_refusal(text)
  assert error.needed == pytest.approx(needed * GIB)
  assert error.limit == 15.75 * GIB
  plan = dataclasses.replace(PLAN, programs=(Compiled("decode", 1.0, error=error),), live=())
  assert not plan.fits
  assert plan.peak is None
  assert "does not fit: the compiler refuses decode" in printed(plan)


def test_the_largest_arrays_of_a_refusal_are_named():
  (buffer,) = read_refusal(LONG).buffers
  assert (buffer.nbytes, buffer.shape) == (12 * GIB, "bf16[1024,1024]")
  assert "jit(f)/mul" in buffer.source


def test_sizes_have_units():
  assert [size(x) for x in ("512", "1.5K", "2M", "15.75G")] == [512, 1536, 2**21, 15.75 * GIB]


def test_the_page_holds_the_verdict_and_escapes_what_a_user_named():
  page = render(PLAN)
  assert "fits: at most 5.00 of 15.75 GiB" in page
  assert "run &lt;b&gt;" in page
  assert "<script" not in page
  assert "logits" in page
