"""Packed rows to attend over, and attention written as loops over their definition."""

import numpy as np

HEADS = {"gqa": (4, 2), "mqa": (8, 1), "mha": (4, 4)}

# Documents of a row: the length of the prefix, then those of its branches. 13 tokens each.
ROWS = (
  ((4, (3, 2)), (2, ())),  # two documents and two of padding
  ((1, (4, 1, 3)), (2, (2,))),  # full
  ((2, (1,)),),  # mostly padding
  (),  # nothing but padding
)


def ids(rows=ROWS, length=13):
  """(segment, branch, position) of every token, i32[B, T] each."""
  out = np.zeros((3, len(rows), length), np.int32)
  for b, documents in enumerate(rows):
    at = 0
    for segment, (prefix, branches) in enumerate(documents, 1):
      for branch, size in enumerate((prefix, *branches)):
        first = prefix if branch else 0
        out[:, b, at : at + size] = [
          [segment] * size,
          [branch] * size,
          range(first, first + size),
        ]
        at += size
  return out


def qkv(heads: str, shape=(4, 13), head_dim=8, seed=0):
  """Random q[B, T, N, H], k and v[B, T, K, H], f32."""
  rng = np.random.default_rng(seed)
  num_heads, num_kv = HEADS[heads]
  return tuple(
    rng.normal(size=(*shape, n, head_dim)).astype(np.float32) for n in (num_heads, num_kv, num_kv)
  )


def sees(segment, branch, position, t, s, window=None) -> bool:
  """Whether token t of one row sees token s, from the definition in `kernels.mask`."""
  same = segment[t] == segment[s] != 0 and branch[s] in (0, branch[t]) and s <= t
  return bool(same and (window is None or position[t] - position[s] < window))


def by_loops(q, k, v, segment, branch, position, window=None):
  """Attention in float64, one query and one head at a time."""
  out = np.zeros(q.shape)
  share = q.shape[2] // k.shape[2]
  for b, t, n in np.ndindex(q.shape[:3]):
    keys = [s for s in range(t + 1) if sees(segment[b], branch[b], position[b], t, s, window)]
    if keys:
      scores = k[b, keys, n // share].astype(float) @ q[b, t, n] / np.sqrt(q.shape[-1])
      weights = np.exp(scores - scores.max())
      out[b, t, n] = weights @ v[b, keys, n // share] / weights.sum()
  return out
