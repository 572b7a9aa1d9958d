"""Attention over a row that is cut over many devices: ours, the `ringattention` package, splash.

    python -m benchmarks.attention [--topology v5p:4x4x4] [--tokens 1048576] [--rows "ring zigzag"]

One table, a device's figures of one layer forward and backward (32 query and 8 key/value heads
of 128, bfloat16, one document):

  peak GiB   by the TPU compiler, arguments and gradients included
  sent GiB   what a device sends, from the shapes and the number of hops
  PFLOP      of the device with most blocks to compute, by counting them: seven products, 2 a
             multiply-add (two of them again in kernels whose backward pass is in two parts)
  of ideal   the same against half of all pairs, cut evenly

`splash` is JAX's splash attention with gathered keys and values, its mask made from a small one
(`make_splash_mha` loops T^2 on the host). `full scores` is the oracle of the tests, with gathered
keys. BigBird: a window of 4,096, 512 global tokens, 8 drawn blocks of 512 a block.
`ringattention` needs that package, which does not import on current JAX (a stand-in for the module
that it misses is made here), so its row is made only where it is named.
"""

import argparse
import functools
import importlib.util
import itertools
import math
import types

from benchmarks.tpu_compile import GIB, compiled, mesh_of, shaped  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.long_context import attention_figures
from ptjax.kernels.blocks import Ids, block_table, bounds
from ptjax.kernels.layout import Layout
from ptjax.kernels.reference import reference
from ptjax.kernels.sparse import Pattern

HEADS, KV_HEADS, HEAD = 32, 8, 128
BLOCK = 1024  # of the peers
COUNTED = 512  # queries and keys of a block that is counted
PRODUCTS = {"forward": 2, "backward": 5}  # [block, block] by [block, H] each; flash, Dao et al.


def counted(layout: Layout, tokens: int, pattern: Pattern | None = None) -> tuple[float, list[int]]:
  """Pairs of blocks of the shard with most of them, as a share of all pairs of the row, and the
  hops of a ring at which some shard has a key to see."""
  shard = tokens // layout.shards
  size = min(COUNTED, shard)
  places = np.arange(tokens, dtype=np.int32)[None]
  one = np.ones_like(places)
  index = layout.index_of(places, tokens)
  blocks = bounds(Ids(one, one * 0, index, index), size)[0]
  of_shards = blocks.reshape(layout.shards, -1, blocks.shape[-1])

  def one(q):
    table = block_table(q, blocks, None, pattern)
    return jnp.sum(table), jnp.any(table.reshape(len(q), layout.shards, -1), (0, 2))

  count, sees_RR = map(np.asarray, jax.lax.map(one, of_shards))
  shards = np.arange(layout.shards)
  hops = [d for d in shards[1:] if sees_RR[shards, shards - d].any()]
  return float(count.max()) / (tokens // size) ** 2, [int(d) for d in hops]


def flops(share: float, tokens: int) -> float:
  """PFLOP, forward and backward."""
  return 2 * sum(PRODUCTS.values()) * HEADS * HEAD * tokens**2 * share / 1e15


def sent(
  way: str, tokens: int, devices: int, heads: int = KV_HEADS, size: int = 2, made=None
) -> float:
  """GiB that a device sends: keys and values there, again for the backward pass, gradients back.

  `made`: the hops of a ring, None for all. One of several places is a move for each power of two.
  """
  keys = 2 * tokens // devices * heads * HEAD  # numbers of keys and values of a shard
  hops = devices - 1
  if way == "ring":
    stops = [0, *(range(1, devices) if made is None else made), devices]
    *moves, home = (int(b - a).bit_count() for a, b in itertools.pairwise(stops))
    return (2 * sum(moves) * keys * size + (sum(moves) + home) * keys * 4) / GIB
  return (2 * hops * keys * size + hops * keys * size) / GIB


def ours(topology: str, tokens: int, way: str, layout: str, pattern: Pattern | None = None, **how):
  found = attention_figures(topology, tokens, way, layout, pattern, **how)
  devices = _devices(topology)
  share, hops = counted(Layout(layout, devices), tokens, pattern)
  return found, share, sent(way, tokens, devices, made=hops if way == "ring" else None)


@functools.cache
def _devices(topology: str) -> int:
  return mesh_of(topology, context=-1).size


def _compile_peer(topology: str, tokens: int, make):
  """`make(mesh) -> attention(q, k, v)` over shards, under `shard_map`."""
  mesh = mesh_of(topology, context=-1)
  attend = make(mesh)

  def loss(q, k, v):
    return jnp.sum(attend(q, k, v).astype(jnp.float32))

  arrays = [
    shaped(mesh, (1, tokens, n, HEAD), jnp.bfloat16, None, "context")
    for n in (HEADS, KV_HEADS, KV_HEADS)
  ]
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    return compiled(jax.jit(jax.grad(loss, argnums=(0, 1, 2))), *arrays)


_ROWS = PartitionSpec(None, "context")


def splash(topology: str, tokens: int):
  """JAX's splash attention over gathered keys and values."""

  def make(mesh: Mesh):
    kernel = _splash_kernel(mesh.size, tokens)
    spec = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(None, "context")))

    def local(kernel, q, k, v):
      k, v = (jax.lax.all_gather(x, "context", axis=1, tiled=True) for x in (k, v))
      q, k, v = (x.swapaxes(1, 2) for x in (q * HEAD**-0.5, k, v))
      return jax.vmap(kernel)(q, k, v).swapaxes(1, 2)

    specs = {"in_specs": (spec, _ROWS, _ROWS, _ROWS), "out_specs": _ROWS}
    return functools.partial(jax.shard_map(local, mesh=mesh, check_vma=False, **specs), kernel)

  devices = _devices(topology)
  share, _ = counted(Layout("contiguous", devices), tokens)
  return _compile_peer(topology, tokens, make), share, sent("all_gather", tokens, devices)


def full(topology: str, tokens: int):
  """The oracle of our tests: every score of the queries of a shard at once."""

  def local(q, k, v):
    k, v = (jax.lax.all_gather(x, "context", axis=1, tiled=True) for x in (k, v))
    first = jax.lax.axis_index("context") * q.shape[1]
    mask_TS = (first + jnp.arange(q.shape[1]))[:, None] >= jnp.arange(tokens)
    return reference(q, k, v, mask_TS[None])

  def make(mesh: Mesh):
    return jax.shard_map(local, mesh=mesh, in_specs=(_ROWS,) * 3, out_specs=_ROWS, check_vma=False)

  devices = _devices(topology)  # nothing is left out: every shard computes with every key
  return _compile_peer(topology, tokens, make), 1 / devices, sent("all_gather", tokens, devices)


def _splash_kernel(shards: int, tokens: int):
  """The structure of a causal mask depends on the number of blocks only: made with blocks of 8."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  def sizes(block: int):
    names = ["block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"]
    inner = {name: min(block, 512) for name in ("block_kv_compute", "block_kv_dkv_compute")}
    return kernels.BlockSizes(**dict.fromkeys(names, block), **inner)

  small = tokens // BLOCK * 8
  mask = masks.MultiHeadMask([masks.CausalMask((small, small), shard_count=shards)] * HEADS)
  made = kernels.make_splash_mha(
    mask=mask, head_shards=1, q_seq_shards=shards, block_sizes=sizes(8)
  )
  places = jnp.arange(tokens, dtype=jnp.int32)
  infos = [
    None if info is None else info._replace(q_sequence=places)
    for info in (made.fwd_mask_info, made.dq_mask_info, made.dkv_mask_info)
  ]
  return kernels.SplashAttentionKernel(*infos, **(made.kwargs | {"block_sizes": sizes(BLOCK)}))


def ringattention(topology: str, tokens: int):
  """The package's plain JAX ring: contiguous, keys and values repeated."""
  import jax.lib
  from jax.extend import backend

  if not hasattr(jax.lib, "xla_bridge"):
    jax.lib.xla_bridge = types.SimpleNamespace(get_backend=backend.get_backend)
  import ringattention as package

  settings = {
    "causal_block_size": 1,
    "deterministic": True,
    "dropout_rng": None,
    "attn_pdrop": 0.0,
    "query_chunk_size": BLOCK,
    "key_chunk_size": BLOCK,
    "dtype": jnp.bfloat16,
    "policy": jax.checkpoint_policies.nothing_saveable,
    "precision": None,
    "prevent_cse": True,
  }

  def local(q, k, v):
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    return package.ringattention_jax(q, k, v, None, None, None, "context", False, settings)

  def make(mesh: Mesh):
    return jax.shard_map(local, mesh=mesh, in_specs=(_ROWS,) * 3, out_specs=_ROWS, check_vma=False)

  devices = _devices(topology)
  share, _ = counted(Layout("contiguous", devices), tokens)
  # Its R-th hop brings the keys home for nothing, forward and backward.
  extra = 2 * 2 * tokens // devices * HEADS * HEAD * 2 / GIB
  out = sent("ring", tokens, devices, HEADS) + extra
  return _compile_peer(topology, tokens, make), share, out


WINDOW = Pattern(window=4096)
BIG_BIRD = Pattern(window=4096, global_tokens=512, random_blocks=8)


CASES = {
  "ring zigzag": functools.partial(ours, way="ring", layout="zigzag"),
  "ring striped": functools.partial(ours, way="ring", layout="striped"),
  "ring contiguous": functools.partial(ours, way="ring", layout="contiguous"),
  "all_gather zigzag": functools.partial(ours, way="all_gather", layout="zigzag"),
  "ring zigzag, by dma": functools.partial(ours, way="ring", layout="zigzag", transfer="dma"),
  "ring, window 4096": functools.partial(ours, way="ring", layout="zigzag", pattern=WINDOW),
  "ring, BigBird": functools.partial(ours, way="ring", layout="zigzag", pattern=BIG_BIRD),
  "splash + all-gather": splash,
  "full scores": full,
  "ringattention": ringattention,
}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--topology", default="v5p:4x4x4")
  parser.add_argument("--tokens", type=int, default=2**20)
  parser.add_argument("--rows", nargs="+", choices=tuple(CASES), default=tuple(CASES)[:-1])
  a = parser.parse_args()
  if "ringattention" in a.rows and importlib.util.find_spec("ringattention") is None:
    parser.error("--rows ringattention needs that package: pip install ringattention")
  devices = _devices(a.topology)
  ideal = flops(0.5 / devices, a.tokens)
  print(f"{a.topology}, {devices} devices, {a.tokens} tokens")
  heads = ("peak GiB", "sent GiB", "PFLOP", "of ideal", "compile s")
  print("  ".join([" " * 20, *(f"{head:>9}" for head in heads)]))
  for name in a.rows:
    found, share, out = CASES[name](a.topology, a.tokens)
    peak = found.get("peak", math.nan)
    most = flops(share, a.tokens)
    figures = peak, out, most, most / ideal, found.get("compile_s", math.nan)
    note = "" if found["fits"] else f"  does not fit: {found['used']}"
    print("  ".join([f"{name:20}", *(f"{x:>9.2f}" for x in figures)]) + note, flush=True)


if __name__ == "__main__":
  main()
