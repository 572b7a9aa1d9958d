"""Attention over rows that are cut, against the oracle: values and gradients."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from attention_cases import HEADS, qkv
from ring_cases import PACKED, assert_close, attend, context, value_and_grads, whole

from ptjax.kernels.attention import attention
from ptjax.kernels.chips import CHIPS
from ptjax.kernels.context import (
  Choice,
  choose,
  context_attention,
  least_ring_shard,
  take_tokens,
)
from ptjax.kernels.mask import MaskSpec
from ptjax.kernels.scores import PLAIN, Scores

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
SHAPED = Scores(2.0, 1.5)

# way, shards, layout, heads, dtype, window, whether scores are scaled and capped and have sinks.
# Every pair of values of two columns stands in some row, see the test below.
GRID = [
  ("ring", 2, "striped", "mqa", "float32", 3, False),
  ("ring", 4, "contiguous", "mqa", "bfloat16", None, True),
  ("ring", 8, "striped", "mha", "bfloat16", None, True),
  ("ring", 8, "zigzag", "gqa", "float32", None, True),
  ("ring", 4, "zigzag", "gqa", "float32", 3, False),
  ("all_gather", 2, "contiguous", "mha", "bfloat16", None, True),
  ("all_gather", 2, "zigzag", "mqa", "bfloat16", 3, True),
  ("all_gather", 4, "contiguous", "gqa", "float32", None, False),
  ("all_gather", 4, "striped", "gqa", "bfloat16", 3, True),
  ("all_gather", 8, "contiguous", "mqa", "bfloat16", 3, False),
  ("ulysses", 2, "contiguous", "gqa", "bfloat16", 3, True),
  ("ulysses", 2, "striped", "gqa", "bfloat16", None, True),
  ("ulysses", 4, "zigzag", "mha", "float32", 3, False),
]


def possible(case) -> bool:
  """Ulysses gives each device whole key/value heads."""
  return case[0] != "ulysses" or HEADS[case[3]][1] % case[1] == 0


def test_the_grid_holds_every_pair():
  columns = [sorted(set(column), key=str) for column in zip(*GRID, strict=True)]
  everything = [case for case in itertools.product(*columns) if possible(case)]
  for a, b in itertools.combinations(range(len(columns)), 2):
    missing = {(c[a], c[b]) for c in everything} - {(c[a], c[b]) for c in GRID}
    assert not missing


@pytest.mark.parametrize("case", GRID, ids=lambda case: "-".join(map(str, case)))
def test_equals_the_oracle(case):
  way, shards, layout, heads, dtype, window, shaped = case
  arrays = [jnp.asarray(x, dtype) for x in qkv(heads, PACKED[0].shape)]
  bar = jnp.asarray(qkv(heads, PACKED[0].shape, seed=1)[0], dtype)
  sinks = jnp.linspace(-1.0, 1.5, HEADS[heads][0]) if shaped else None
  rest = {"scores": SHAPED if shaped else PLAIN, "window": window}
  where = context(shards, layout_name=layout, way=way)
  got = value_and_grads(functools.partial(attend, where), arrays, bar, sinks, **rest)
  want = value_and_grads(whole, arrays, bar, sinks, **rest)
  assert len(got) == 4 + shaped
  assert_close(got, want, TOLERANCE[dtype])


def test_the_choice_follows_the_chip():
  """2 x (8 / 32) x 459e12 / 90e9 = 2550 tokens, four times that without shared keys."""
  v5p = CHIPS["TPU v5"]
  assert least_ring_shard(v5p, 32, 8) == 2550
  assert least_ring_shard(v5p, 32, 32) == 10200
  assert choose("auto", v5p, 2550, 32, 8).way == "ring"
  short = choose("auto", v5p, 2549, 32, 8)
  assert short.way == "all_gather"
  assert "2549" in short.why
  assert "2550" in short.why
  assert choose("ulysses", v5p, 2549, 32, 8) == Choice("ulysses", "as configured")


def test_the_choice_is_logged(caplog):
  q, k, v = qkv("gqa", PACKED[0].shape)
  with caplog.at_level("INFO", "ptjax.kernels.context"):
    jax.eval_shape(functools.partial(attend, context(2)), q, k, v)
  assert "attention over 24 tokens: ring, zigzag; no link" in caplog.text


def test_ulysses_refuses_heads_that_do_not_divide():
  with pytest.raises(ValueError, match="1 key/value heads of a device over 2 shards"):
    attend(context(2, way="ulysses"), *qkv("mqa", PACKED[0].shape))


def test_rows_must_be_stored_for_their_shards():
  where = context(2)
  q, k, v = qkv("gqa", PACKED[0].shape)
  with pytest.raises(ValueError, match=r"21 tokens .* pads them to 24"):
    context_attention(
      q,
      k,
      v,
      context=where,
      segment_ids_BT=PACKED[0],
      branch_ids_BT=PACKED[1],
      positions_BT=PACKED[2],
      scores=PLAIN,
    )


def test_an_implementation_of_whole_rows_is_refused():
  q, k, v = qkv("gqa", PACKED[0].shape)
  with pytest.raises(ValueError, match="'blockwise' reads whole rows, which are cut over 2"):
    attention(
      q,
      k,
      v,
      mask_spec=MaskSpec(),
      segment_ids_BT=PACKED[0],
      branch_ids_BT=PACKED[1],
      positions_BT=PACKED[2],
      implementation="blockwise",
      context=context(2),
    )


def test_the_states_of_actions_keep_no_array_of_all_slots_by_width():
  """A mask of what a device has, broadcast over the width, is as large as the row on each."""
  where = context(4)
  x, slots = jax.ShapeDtypeStruct((1, 64, 32), jnp.float32), jnp.arange(64)[None]

  def pull(x):
    return jax.vjp(lambda x: take_tokens(where, x, slots), x)[1]

  kept = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(pull, x))]
  assert sum(kept) < 2 * x.size
