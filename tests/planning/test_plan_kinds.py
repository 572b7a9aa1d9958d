"""Plans of what is more than plain weights: adapters, 8 bits, bfloat16, replayed routes."""

import dataclasses
import functools
import importlib.util

import pytest
from plan_toys import SHAPE, TOPOLOGY, toy

from ptjax.models.config import MoeConfig
from ptjax.models.lora import LoraConfig
from ptjax.planning import programs as names
from ptjax.planning.compiler import compile_program
from ptjax.planning.memory import device_bytes
from ptjax.planning.programs import programs, residents
from ptjax.planning.roofline import counts
from ptjax.planning.setup import Setup, set_up
from ptjax.planning.topology import parse_topology
from ptjax.train.experiment import CriticConfig, RLConfig
from ptjax.train.policy_objective import CorrectionConfig, PolicyObjective
from ptjax.train.router import RouterConfig

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)

SPARSE = dataclasses.replace(SHAPE, moe=MoeConfig(num_experts=8, top_k=2, d_ff=256))
CORRECTED = PolicyObjective(correction=CorrectionConfig(kind="tis_token"))


def adapted():
  """QLoRA of policy and critic, decoding in 8 bits."""
  lora = LoraConfig(rank=8, base="int8")
  return toy(
    model=dataclasses.replace(toy().model, lora=lora),
    critic=CriticConfig(num_layers=1, lora=lora),
    engine=dataclasses.replace(toy().engine, weights="int8"),
    rl=dataclasses.replace(toy().rl, reference=True, objective=CORRECTED),
  )


def sparse():
  """Experts whose choices are replayed, with a loss on their load; bfloat16 and 8-bit copies."""
  return toy(
    model=dataclasses.replace(
      toy().model, param_dtype="bfloat16", router=RouterConfig(balance_coef=0.01)
    ),
    optimizer=dataclasses.replace(toy().optimizer, narrow="master"),
    critic=None,
    rl=RLConfig(
      prompts_per_step=4,
      group_size=4,
      reference=True,
      reference_weights="int8",
      router_replay=True,
    ),
  )


KINDS = {"adapted": (adapted, SHAPE), "sparse": (sparse, SPARSE)}
# Those of each that differ from the programs of plain weights.
DIFFERENT = {
  "adapted": {"policy gradient", "critic gradient", "reference scores", "decode"},
  "sparse": {"policy gradient", "policy update", "reference scores", "router load", "decode"},
}


@functools.cache
def setup_of(kind: str) -> Setup:
  experiment, shape = KINDS[kind]
  return set_up(experiment(), shape, parse_topology(TOPOLOGY).devices())


@pytest.mark.parametrize("kind", KINDS)
def test_programs_compile_on_what_the_run_holds(kind):
  setup = setup_of(kind)
  chosen = [p for p in programs(setup) if p.name in DIFFERENT[kind]]
  assert {p.name for p in chosen} == DIFFERENT[kind]
  for program in chosen:
    compiled = compile_program(program, setup.mesh)
    ours = device_bytes(program.arguments)
    # Up to tiles, and to arguments that a program does not read.
    assert 0.6 * ours <= compiled.arguments <= 1.6 * ours + 64 * 1024, program.name


def test_adapters_train_and_their_base_is_held_once():
  setup = setup_of("adapted")
  held = {name: device_bytes(tree) for name, tree in residents(setup).items()}
  blocks = SHAPE.num_params - 2 * SHAPE.vocab_size * SHAPE.d_model
  assert blocks / 4 < held[names.START] < 1.1 * blocks / 4 + 2 * 4 * 512 * 512 / 4
  assert held[names.POLICY] < 0.3 * held[names.START]
  assert held[names.POLICY_OPTIMIZER] == pytest.approx(2 * held[names.POLICY], rel=0.01)
  # A quarter of the blocks in 8 bits, and the output matrix.
  assert held[names.ENGINE] < 1.1 * (blocks / 4 + 4 * 512 * 512 / 4)
  assert counts(setup)["reference scores"] == 4
  assert counts(setup)["policy scores"] == 0


def test_a_reference_in_8_bits_frees_the_start():
  setup = setup_of("sparse")
  held = {name: device_bytes(tree) for name, tree in residents(setup).items()}
  assert names.START not in held
  plain = 2 * SPARSE.num_params / 4  # bfloat16
  assert held[names.POLICY] == pytest.approx(plain, rel=0.02)
  assert held[names.POLICY_OPTIMIZER] == pytest.approx(6 * plain, rel=0.02)  # master and moments
  assert held[names.REFERENCE] < 0.75 * plain
  assert counts(setup)["router load"] == counts(setup)["policy gradient"] == 4


def test_replay_without_experts_is_refused():
  e = toy(rl=dataclasses.replace(toy().rl, router_replay=True))
  with pytest.raises(ValueError, match="router_replay: the model has no experts"):
    set_up(e, SHAPE, parse_topology(TOPOLOGY).devices())
