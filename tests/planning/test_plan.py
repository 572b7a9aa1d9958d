"""A plan by the real TPU compiler: of a tiny model, since a compilation takes seconds."""

import importlib.util
import json

import pytest
from plan_toys import SHAPE, TOPOLOGY, toy, toy_plan

from ptjax.experience.packing import PackConfig
from ptjax.planning import advice
from ptjax.planning import programs as names
from ptjax.planning.compiler import compile_program
from ptjax.planning.memory import device_bytes
from ptjax.planning.plan import to_json
from ptjax.planning.programs import programs, residents
from ptjax.planning.setup import set_up
from ptjax.planning.topology import GIB, parse_topology
from ptjax.rollout.engine import EngineConfig

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)

PROGRAMS = {
  "prefill", "decode", "policy scores", "policy gradient", "policy update",
  "critic scores", "critic gradient", "critic update",
}  # fmt: skip


def test_every_program_of_a_step_compiles_and_fits():
  plan = toy_plan()
  assert {p.name for p in plan.programs} == PROGRAMS
  assert plan.fits
  assert not plan.hints
  assert all(p.peak >= p.arguments > 0 for p in plan.programs)
  assert plan.hbm == parse_topology(TOPOLOGY).chip.hbm


def test_what_lives_together_holds_the_residents_once():
  plan = toy_plan()
  for live, program in zip(plan.live, plan.programs, strict=True):
    assert live.name == program.name
    assert live.total >= sum(plan.residents.values())
    assert live.total >= program.peak
    # An argument that is a resident is not counted again.
    assert live.total <= sum(plan.residents.values()) + 2 * program.peak


def test_the_compiler_takes_as_arguments_what_the_run_holds():
  """Its bytes are those of the abstract arrays, up to the tiles that it pads to."""
  plan, setup = toy_plan(), set_up(toy(), SHAPE, parse_topology(TOPOLOGY).devices())
  wanted = {p.name: p for p in programs(setup)}
  for p in plan.programs:
    ours = device_bytes(wanted[p.name].arguments)
    assert ours * 0.9 <= p.arguments <= 1.35 * ours + 64 * 1024, p.name


def test_parameters_and_moments_are_split_over_the_mesh():
  setup = set_up(toy(), SHAPE, parse_topology(TOPOLOGY).devices())
  held = {name: device_bytes(tree) for name, tree in residents(setup).items()}
  quarter = SHAPE.num_params * 4 / 4
  assert held[names.POLICY] == pytest.approx(quarter, rel=0.02)
  assert held[names.POLICY_OPTIMIZER] == pytest.approx(2 * quarter, rel=0.02)
  # 8 slots over 4 devices, two layers of keys and values in bfloat16.
  assert held[names.CACHE] == 2 * 2 * 2 * 128 * 2 * 128 * 2


def test_the_gradient_lies_where_the_parameters_lie():
  """Without its shardings, every device would hold the whole gradient."""
  (gradient,) = (p for p in toy_plan().programs if p.name == "policy gradient")
  (update,) = (p for p in toy_plan().programs if p.name == "policy update")
  assert gradient.outputs < 1.2 * update.arguments / 3


def test_what_is_split_crosses_the_fsdp_axis():
  """Rows and weights are: of so short rows the compiler gathers the states, of long ones the
  weights. All states of one layer are the least that it can send."""
  (gradient,) = (p for p in toy_plan().programs if p.name == "policy gradient")
  assert {axis for flow in gradient.traffic for axis in flow.axes} == {"fsdp"}
  assert not any(flow.dcn for flow in gradient.traffic)
  states = 4 * 128 * SHAPE.d_model * 2  # rows, tokens, width, bytes in bfloat16
  assert sum(flow.sent for flow in gradient.traffic) > SHAPE.num_layers * states * 3 / 4


def test_a_cache_that_is_too_large_is_refused_and_something_smaller_named():
  """256 MiB a slot on each device: the compiler says so, and which change frees how much."""
  engine = EngineConfig(num_slots=4 * 128, max_length=2**17, decode_chunk=4)
  e = toy(engine=engine, pack=PackConfig(length=2**17, actions=64, rows=4))
  setup = set_up(e, SHAPE, parse_topology(TOPOLOGY).devices())
  (decode,) = (p for p in programs(setup) if p.name == "decode")
  error = compile_program(decode, setup.mesh).error
  assert error is not None
  assert error.limit == 15.75 * GIB
  assert error.needed is None or error.needed > error.limit
  held = {name: device_bytes(tree) for name, tree in residents(setup).items()}
  assert held[names.CACHE] == 128 * 2**28
  first = advice.hints(setup, held)[0]
  assert first.startswith("engine.num_slots=256 halves the KV cache: 16.00 GiB less")


def test_json_has_what_a_reader_needs():
  tree = json.loads(json.dumps(to_json(toy_plan())))
  assert tree["fits"] is True
  assert tree["peak"] < tree["hbm"] == 15.75 * GIB
  assert tree["topology"]["devices"] == 4
  assert tree["mesh"]["fsdp"] == 4
  assert {p["name"] for p in tree["programs"]} == PROGRAMS
  for row in tree["live"]:
    assert row["total"] == sum(row["parts"].values())
  for row in tree["roofline"]:
    assert row["bound"] in row["times"]
    assert row["seconds"] > 0
  assert tree["step_seconds"] == pytest.approx(sum(r["seconds"] for r in tree["roofline"]))
