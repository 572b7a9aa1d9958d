"""Sparse patterns: the pairs that they admit, by loops; attention, against the oracle."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import ids, qkv
from ring_cases import assert_close, attend, context, value_and_grads

from ptjax.kernels.attention import attention
from ptjax.kernels.blocks import Ids, block_table, bounds, pair_mask
from ptjax.kernels.context import flash_attention
from ptjax.kernels.flash import How
from ptjax.kernels.mask import MaskSpec, visible
from ptjax.kernels.reference import reference
from ptjax.kernels.scores import PLAIN
from ptjax.kernels.sparse import Pattern

LENGTH = 45
PACKED = ids((((20, (9, 6)), (7, ())), ((45, ()),)), LENGTH)
PATTERNS = {
  "window": Pattern(3),
  "global": Pattern(2, global_tokens=3),
  "strided": Pattern(2, stride=4, block=2),
  "random": Pattern(1, random_blocks=2, block=4, seed=3),
  "all": Pattern(4, global_tokens=2, stride=8, random_blocks=1, block=2),
}


def drawn(pattern: Pattern, block: int) -> list[int]:
  """The blocks drawn for a block of queries, in Python's integers."""
  low, out = 2**32 - 1, []
  for n in range(pattern.random_blocks):
    x = (block * 0x343FD + pattern.seed * 0x9E37 + n * 0x2545F + 1) & low
    x = ((x ^ x >> 16) * 0x45D9F3B) & low
    x = ((x ^ x >> 15) * 0x2C1B3C6D) & low
    out.append((x >> 17) * (block + 1) >> 15)
  return out


def admits(pattern: Pattern, p: int, k: int) -> bool:
  query, key = p // pattern.block, k // pattern.block
  strided = pattern.stride is not None and (query - key) % pattern.stride == 0
  near = p - k < pattern.window
  return near or k < pattern.global_tokens or strided or key in drawn(pattern, query)


@pytest.mark.parametrize("name", PATTERNS)
def test_admits_what_the_definition_says(name):
  pattern, n = PATTERNS[name], 60
  got = pattern.admits(jnp.arange(n)[:, None], jnp.arange(n)[None])
  want = [[admits(pattern, p, k) for k in range(n)] for p in range(n)]
  causal = np.tri(n, dtype=bool)
  np.testing.assert_array_equal(got & causal, np.asarray(want) & causal)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_block_with_a_visible_pair_is_left_out(name):
  """In packed rows, where documents meet in a block."""
  packed = ids((((20, (9, 7)), (12, ())), ((48, ()),)), 48)
  places = jnp.broadcast_to(jnp.arange(48), packed[0].shape)
  tokens = Ids(*map(jnp.asarray, packed), places)
  pattern = PATTERNS[name]
  table = block_table(bounds(tokens, 4), bounds(tokens, 4), None, pattern)
  seen = pair_mask(tokens, tokens, None, pattern).reshape(2, 12, 4, 12, 4).any((2, 4))
  assert not (seen & ~table).any()
  np.testing.assert_array_equal(table[1], seen[1])  # one document: no block in vain


def test_draws_are_spread_over_the_past_and_follow_the_seed():
  block = 1000
  draws = np.asarray(drawn(Pattern(1, random_blocks=2000, seed=1), block))
  assert draws.min() >= 0
  assert draws.max() <= block
  counts = np.histogram(draws, bins=4, range=(0, block))[0]
  np.testing.assert_allclose(counts, 500, atol=80)
  assert drawn(Pattern(random_blocks=5, seed=1), block) != drawn(
    Pattern(random_blocks=5, seed=2), block
  )


def oracle(pattern, q, k, v, sinks=None):
  return reference(q, k, v, visible(MaskSpec(pattern=pattern), *map(jnp.asarray, PACKED)))


def on_one_device(pattern, engine, block, q, k, v, sinks=None):
  places = jnp.broadcast_to(jnp.arange(LENGTH), PACKED[0].shape)
  tokens = Ids(*map(jnp.asarray, PACKED), places)
  how = How.of(PLAIN, q.shape[-1], engine, block, pattern)
  return flash_attention(how, q, k, v, None, None, tokens, tokens)


def cut(pattern, way, layout, q, k, v, sinks=None):
  where = context(4, way=way, layout_name=layout)
  return attend(where, q, k, v, packed=PACKED, pattern=pattern)


CASES = {
  "window-jnp": (on_one_device, "window", "jnp", 4),
  "all-jnp": (on_one_device, "all", "jnp", 4),
  "random-tpu": (on_one_device, "random", "tpu_interpret", 128),
  "all-tpu": (on_one_device, "all", "tpu_interpret", 128),
  "global-ring": (cut, "global", "ring", "zigzag"),
  "strided-ring": (cut, "strided", "ring", "contiguous"),
  "all-gather": (cut, "all", "all_gather", "striped"),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_oracle(case):
  compute, name, *rest = CASES[case]
  arrays, bar = qkv("gqa", PACKED[0].shape), qkv("gqa", PACKED[0].shape, seed=1)[0]
  got = value_and_grads(functools.partial(compute, PATTERNS[name], *rest), arrays, bar)
  want = value_and_grads(functools.partial(oracle, PATTERNS[name]), arrays, bar)
  assert_close(got, want, 1e-5)


def test_blocks_computed_grow_with_the_length_not_its_square():
  """A window of 8 blocks, a global one, a drawn one: at most 11 of each row's blocks."""
  pattern = Pattern(window=8 * 64, global_tokens=64, random_blocks=1, block=64)

  def computed(length: int) -> int:
    one = jnp.ones((1, length), jnp.int32)
    places = jnp.arange(length)[None]
    blocks = bounds(Ids(one, one * 0, places, places), 64)
    return int(block_table(blocks, blocks, None, pattern).sum())

  counts = [computed(64 * n) for n in (32, 64, 128)]
  dense = [n * (n + 1) // 2 for n in (32, 64, 128)]
  assert all(count <= 11 * n for count, n in zip(counts, (32, 64, 128), strict=True))
  assert counts[2] < dense[2] / 5
  # Twice the length, twice the blocks but for the beginning.
  assert 1.9 < (counts[2] - counts[1]) / (counts[1] - counts[0]) < 2.1


def test_dense_rows_too():
  """The path for short rows, which `auto` takes."""
  q, k, v = qkv("gqa", PACKED[0].shape)
  segment, branch, position = PACKED
  out = attention(
    q,
    k,
    v,
    mask_spec=MaskSpec(pattern=PATTERNS["all"]),
    segment_ids_BT=segment,
    branch_ids_BT=branch,
    positions_BT=position,
  )
  np.testing.assert_allclose(out, oracle(PATTERNS["all"], q, k, v), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"window": 0}, "window 0 must be at least 1"),
    ({"stride": 3}, "stride 3 is no power of two"),
    ({"block": 100}, "block 100 is no power of two"),
    ({"random_blocks": -1}, "random_blocks -1 must be at least 0"),
  ],
)
def test_senseless_patterns_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    Pattern(**changes)
