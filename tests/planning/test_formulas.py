"""Operations, bounds, search and longest context; by formula, so nothing is compiled."""

import dataclasses
import importlib.util

import pytest
from plan_toys import SHAPE, TOPOLOGY, toy

from ptjax.models.presets import preset
from ptjax.planning import flops
from ptjax.planning.collectives import Traffic
from ptjax.planning.compiler import Compiled
from ptjax.planning.estimate import estimate_on
from ptjax.planning.memory import SAVED
from ptjax.planning.roofline import counts, roofline
from ptjax.planning.search import max_context, search, with_context
from ptjax.planning.setup import set_up
from ptjax.planning.topology import CHIPS, parse_topology

compiler = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed"
)


def test_weights_that_a_token_meets():
  """By hand: attention 2 x 512 x 512 + 2 x 512 x 256, feed-forward 3 x 512 x 512, two norms."""
  assert flops.block_weights(SHAPE) == 2 * (524_288 + 262_144 + 786_432 + 1024)


def test_only_the_chosen_experts_count():
  """Qwen3-30B-A3B: 3.3 billion active parameters, of which 0.62 are the two tables."""
  c = preset("Qwen3-30B-A3B")
  assert flops.block_weights(c) / 1e9 == pytest.approx(3.35 - 0.62, abs=0.03)


def test_attention_sees_half_of_a_causal_row_and_no_more_than_a_window():
  rows, length = 3, 128
  weights = 2 * rows * length * flops.block_weights(SHAPE)
  attention = 2 * 4 * (128 + 128) * rows * length * 64 * 2
  assert flops.forward(SHAPE, rows, length) == weights + attention
  windowed = dataclasses.replace(SHAPE, window=16)
  assert flops.forward(windowed, rows, length) == weights + attention / 4


def test_remat_computes_the_forward_pass_again():
  e = toy(rl=toy().rl)
  full, none = (dataclasses.replace(SHAPE, remat=r) for r in ("full", "none"))
  once = flops.forward(SHAPE, 4, 128)
  assert flops.gradient(full, e) - flops.gradient(none, e) == once


@compiler
def test_executions_of_a_step():
  """4 prompts of 64 tokens and 16 answers of 64, in 4 rows of 128 tokens with 64 actions each."""
  found = counts(set_up(toy(), SHAPE, parse_topology(TOPOLOGY).devices()))
  # 16 answers of 64 actions fill 16 rows, so 4 micro-batches; 8 slots take two waves of 16 chunks.
  assert found["policy gradient"] == found["critic gradient"] == 4
  assert found["decode"] == 2 * 16
  assert found["prefill"] == 4
  # One update from a fresh batch, without a reference: nothing to score.
  assert found["policy scores"] == 0


@compiler
def test_the_slowest_bound_is_named():
  setup, chip = set_up(toy(), SHAPE, parse_topology(TOPOLOGY).devices()), CHIPS["v5e"]
  flows = (Traffic("all-gather", ("fsdp",), False, 1, 90e9),)
  (found,) = roofline(setup, chip, [Compiled("policy update", 1.0, 819_000, 0, 0, 1, (), flows)])
  assert found.times["hbm"] == pytest.approx(1e-6)
  assert found.times["ici"] == pytest.approx(1.0)
  assert (found.bound, found.seconds) == ("ici", found.times["ici"])
  across = (dataclasses.replace(flows[0], dcn=True),)
  (found,) = roofline(setup, chip, [Compiled("policy update", 1.0, 1, 0, 0, 1, (), across)])
  assert (found.bound, found.times["ici"]) == ("dcn", 0)


@compiler
def test_what_full_remat_keeps_is_one_state_a_layer():
  parts = estimate_on(toy(critic=None, rl=GRPO), SHAPE, parse_topology(TOPOLOGY)).parts
  assert parts[SAVED] == 2 * 128 * 512 * 2  # layers, tokens of a row, width, bytes


GRPO = dataclasses.replace(toy().rl, advantages="grpo")


@compiler
def test_a_search_ranks_what_fits():
  topology = parse_topology(TOPOLOGY)
  found = search(toy(critic=None, rl=GRPO), SHAPE, topology)
  assert found
  assert [c.seconds for c in found] == sorted(c.seconds for c in found)
  assert all(c.live.total <= topology.chip.hbm for c in found)
  assert {c.changes["mesh.tensor"] for c in found} == {"1", "2"}  # two key/value heads
  assert all(c.experiment.mesh.tensor == int(c.changes["mesh.tensor"]) for c in found)


@compiler
def test_the_longest_context_fits_and_the_next_does_not():
  e, topology = toy(critic=None, rl=GRPO), parse_topology(TOPOLOGY)
  longest = max_context(e, SHAPE, topology)
  totals = [
    estimate_on(with_context(e, n), SHAPE, topology).total for n in (longest, longest + 1024)
  ]
  assert longest % 1024 == 0
  assert totals[0] <= topology.chip.hbm < totals[1]
