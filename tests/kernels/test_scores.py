"""Scale, soft cap, sinks, traced windows and wider values, against loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import ids, qkv, sees

from ptjax.kernels.attention import IMPLEMENTATIONS, attention
from ptjax.kernels.decode import decode_attention
from ptjax.kernels.mask import MaskSpec, masked_softmax
from ptjax.kernels.scores import Scores

PACKED = ids()
SINKS = np.asarray([0.5, -1.0, 2.0, 0.0], np.float32)
WIDE = np.random.default_rng(5).normal(size=(4, 13, 2, 6)).astype(np.float32)
CASES = [
  {"scale": 0.7},
  {"cap": 0.5},
  {"sinks": SINKS},
  {"window": 3},
  {"scale": 2.0, "cap": 1.5, "sinks": SINKS, "window": 2, "v": WIDE},
]


def by_loops(q, k, v, scale=8**-0.5, cap=None, sinks=None, window=None):
  """Attention as the formulas say it, one query and one head at a time."""
  out = np.zeros((*q.shape[:3], v.shape[-1]))
  share = q.shape[2] // k.shape[2]
  for b, t, n in np.ndindex(q.shape[:3]):
    keys = [s for s in range(t + 1) if sees(*PACKED[:, b], t, s, window)]
    if keys:
      scores = scale * (k[b, keys, n // share].astype(float) @ q[b, t, n])
      if cap is not None:
        scores = cap * np.tanh(scores / cap)
      total = np.exp(scores).sum() + (0 if sinks is None else np.exp(float(sinks[n])))
      out[b, t, n] = np.exp(scores) @ v[b, keys, n // share] / total
  return out


@functools.partial(jax.jit, static_argnums=(0, 1))
def attend(implementation, scores, q, k, v, sinks, window):
  segment, branch, position = map(jnp.asarray, PACKED)
  return attention(
    q,
    k,
    v,
    mask_spec=MaskSpec(),
    segment_ids_BT=segment,
    branch_ids_BT=branch,
    positions_BT=position,
    implementation=implementation,
    scores=scores,
    window=window,
    sinks_N=sinks,
  )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids="+".join)
def test_rows_equal_loops(case, implementation):
  q, k, v = qkv("gqa")
  v = case.get("v", v)
  rest = {name: value for name, value in case.items() if name != "v"}
  scores = Scores(rest.get("scale"), rest.get("cap"))
  got = attend(implementation, scores, q, k, v, rest.get("sinks"), rest.get("window"))
  np.testing.assert_allclose(got, by_loops(q, k, v, **rest), rtol=0, atol=1e-5)


def test_gradients_of_both_implementations_agree():
  q, k, _ = qkv("gqa")
  scores = Scores(2.0, 1.5)

  def total(implementation, *arrays):
    return jnp.sum(jnp.sin(attend(implementation, scores, *arrays, 3)))

  grads = [
    jax.grad(functools.partial(total, name), argnums=(0, 1, 2, 3))(q, k, WIDE, SINKS)
    for name in ("reference", "blockwise")
  ]
  for got, want in zip(*grads, strict=True):
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids="+".join)
def test_decoding_equals_the_last_query(case):
  """The first row's first document is 4 + 3 tokens long on its first branch."""
  q, k, v = qkv("gqa")
  v = case.get("v", v)
  rest = {name: value for name, value in case.items() if name != "v"}
  cache = np.moveaxis(k[:1], 1, 3), np.moveaxis(v[:1], 1, 2)
  got = decode_attention(
    q[:1, 6],
    *map(jnp.asarray, cache),
    np.asarray([7], np.int32),
    scores=Scores(rest.get("scale"), rest.get("cap")),
    window=rest.get("window"),
    sinks_N=rest.get("sinks"),
  )
  np.testing.assert_allclose(got, by_loops(q, k, v, **rest)[:1, 6], rtol=0, atol=1e-5)


def test_masked_softmax_with_a_sink_by_hand():
  scores = jnp.log(jnp.asarray([[1.0, 3.0, 7.0], [2.0, 2.0, 1.0]]))
  mask = jnp.asarray([[True, True, False], [False, False, False]])
  weights = masked_softmax(scores, mask, jnp.log(jnp.asarray([[4.0], [1.0]])))
  np.testing.assert_allclose(weights, [[0.125, 0.375, 0.0], [0.0, 0.0, 0.0]], rtol=1e-6)
