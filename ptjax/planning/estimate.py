"""Memory by formula: for slices too large to compile quickly, and to rank many candidates.

What lives from step to step is exact: it is the run's own arrays, by shape and sharding. What a
program needs beside it is a formula of the largest phases that the compiler's schedules show
(`liveness`), held to its figures by tests/planning/test_memory_estimate.py.
"""

import dataclasses
import math
from typing import Any

import jax

from ptjax.kernels.attention import AUTO, LONGEST_DENSE
from ptjax.models.config import DecoderConfig
from ptjax.planning import programs as names
from ptjax.planning.memory import ACTIVATIONS, COPIES, LOGITS, RESULTS, SAVED, Live, device_bytes
from ptjax.planning.setup import Setup, set_up
from ptjax.planning.topology import Topology
from ptjax.rollout.engine import prefill_length
from ptjax.train.experiment import Experiment
from ptjax.train.networks import Trainer, TrainState

_F32 = 4
CACHE_COPY = "keys and values of a prompt"


@dataclasses.dataclass(frozen=True)
class Local:
  """Sizes on one device.

  Attributes:
    rows, length, actions: of a micro-batch.
    tensor: devices that share heads, feed-forward width and vocabulary.
    dense: attention keeps the weights of all scores of a row.
    width: bytes of an activation.
    cast: bytes of a weight as products read it.
  """

  rows: int
  length: int
  actions: int
  tensor: int
  dense: bool
  width: int
  cast: int


def local(setup: Setup) -> Local:
  e, shape = setup.experiment, setup.mesh.shape
  batch = math.prod(shape[axis] for axis in e.rules.batch)
  wide = {"bfloat16": 2, "float32": 4}
  shards = math.prod(shape[axis] for axis in e.rules.length)
  return Local(
    rows=-(-e.pack.rows // batch),
    length=-(-e.pack.length // shards),
    actions=e.pack.actions,
    tensor=math.prod(shape[axis] for axis in e.rules.ff),
    dense=setup.model.attention not in (AUTO, "flash"),  # a TPU has kernels, at any length
    width=wide[setup.model.activation_dtype],
    cast=wide[setup.model.matmul_dtype],
  )


def _dense(c: DecoderConfig, length: int) -> bool:
  """What `kernels.attention` picks for prompts, which are on no mesh."""
  return length <= LONGEST_DENSE if c.attention == AUTO else c.attention != "flash"


def estimate(setup: Setup) -> list[Live]:
  """All that is on a device in the phases of a step that need most, by formula."""
  held = {name: device_bytes(tree) for name, tree in names.residents(setup).items()}
  found = [
    Live("policy gradient", held | _gradient(setup, setup.model, setup.trainer, setup.policy)),
    Live("decode", held | _decode(setup)),
    Live("prefill", held | _prefill(setup)),
  ]
  critic, state = setup.critic, setup.critic_state
  if critic is not None and state is not None:
    parts = _gradient(setup, critic.model, critic.trainer, state, is_critic=True)
    found.append(Live("critic gradient", held | parts))
  return found


def estimate_on(e: Experiment, shape: DecoderConfig, topology: Topology) -> Live:
  """The fullest phase of an experiment on a slice."""
  found = estimate(set_up(e, shape, topology.devices()))
  return max(found, key=lambda live: live.total)


def _gradient(
  setup: Setup, c: DecoderConfig, trainer: Trainer, state: TrainState, *, is_critic: bool = False
) -> dict[str, int]:
  """Beside the residents, the larger of two phases: the head's backward pass, and that of the
  layers, when the gradients of all layers exist and one layer is computed again."""
  at, trains_all = local(setup), trainer.frozen is None
  trained = _F32 * _elements(state.params)
  # The gradient of narrow parameters is as narrow, before it is widened.
  narrow = sum(device_bytes(x) for x in jax.tree.leaves(state.params) if x.dtype.itemsize < _F32)
  table = c.vocab_size * c.d_model // at.tensor
  always = {COPIES: _casts(setup, trainer.network(state.params), at), SAVED: _saved(c, at)}
  head = {LOGITS: 0, RESULTS: 0}
  if not is_critic:
    chunk = min(setup.experiment.rl.objective.logit_chunk, at.actions)
    # The matrix, gathered; its gradient, whole, before and after the sum over the devices, which
    # the compiler writes over one another where it is the token table's.
    gathered = table * at.cast if _split(setup, "embed") > 1 else 0
    head = {
      LOGITS: 2 * at.rows * chunk * c.vocab_size // at.tensor * _F32,
      RESULTS: (1 if c.tie_embeddings else 2) * table * _F32 * trains_all,
      COPIES: always[COPIES] + gathered,
    }
  layer = {
    ACTIVATIONS: _layer(c, at),
    RESULTS: trained + narrow,
    COPIES: always[COPIES] + _largest(c, at, trains_all=trains_all),
  }
  phase = max((head, layer), key=lambda p: sum((always | p).values()))
  summed = names.CRITIC_GRADIENTS if is_critic else names.GRADIENTS
  parts = {summed: trained} | always | phase
  return {key: n for key, n in parts.items() if n}


def _casts(setup: Setup, network: Any, at: Local) -> int:
  """Every matrix of the stacks is cast once, outside the loop over the layers, where it is kept
  wider than products read it. One in 8 bits is widened layer by layer."""
  stacks = {k: v for k, v in network.get("trunk", network).items() if k in setup.model.stacks}
  leaves = jax.tree.leaves(stacks)
  return at.cast * sum(_elements(x) for x in leaves if x.dtype.itemsize > at.cast)


def _elements(tree: Any) -> int:
  """Numbers on one device."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree))


def _split(setup: Setup, axis: str) -> int:
  return math.prod(setup.mesh.shape[a] for a in getattr(setup.experiment.rules, axis))


def _saved(c: DecoderConfig, at: Local) -> int:
  """What every layer keeps for the backward pass."""
  tokens = at.rows * at.length
  per_token = 0 if c.remat == "offload" else c.d_model
  if c.remat == "attention":
    per_token += c.num_heads * c.value_dim // at.tensor
  elif c.remat not in ("full", "offload"):
    heads = c.num_heads * (c.head_dim + c.value_dim) + 2 * c.num_kv_heads * c.head_dim
    ff = 3 * c.d_ff if c.moe is None else 3 * c.moe.top_k * c.moe.d_ff
    per_token += (heads + ff) // at.tensor + c.d_model
  weights = _attention(c, at) if c.remat == "none" else 0  # of every layer's scores
  return c.num_layers * (tokens * per_token * at.width + weights)


def _layer(c: DecoderConfig, at: Local) -> int:
  """One layer, forward and backward: attention weights of a causal row, and the feed-forward's
  inner states."""
  tokens = at.rows * at.length
  inner = c.d_ff if c.moe is None else c.moe.top_k * c.moe.d_ff + c.moe.shared_d_ff
  return _attention(c, at) + tokens * (4 * inner // at.tensor * _F32 + 8 * c.d_model * _F32)


def _attention(c: DecoderConfig, at: Local) -> int:
  """float32 weights of one layer's scores, their gradient and their narrow copy, over half of the
  square; the mask. By pairs of blocks: queries, keys, values, outputs and their gradients."""
  heads = max(1, c.num_heads // at.tensor)
  if not at.dense:
    return at.rows * at.length * heads * (c.head_dim + c.value_dim) * 4 * _F32
  return at.rows * at.length**2 * (heads * (2 * _F32 + at.width) // 2 + 1)


def _largest(c: DecoderConfig, at: Local, *, trains_all: bool) -> int:
  """The largest matrix of a layer, gathered, and its whole gradient where it trains."""
  inner = c.d_ff if c.moe is None else c.moe.num_experts * c.moe.d_ff
  return c.d_model * inner // at.tensor * (at.cast + 2 * _F32 * trains_all)


def _prefill(setup: Setup) -> dict[str, int]:
  """Beside the residents: a prompt is on every device as a whole; one layer's inner states, keys
  and values of all layers, and the weights as products read them."""
  e, c, at = setup.experiment, setup.model, local(setup)
  prompts = e.engine.prefill_batch(e.engine.num_slots)
  length = prefill_length(max(1, e.engine.max_length - e.policy.max_new_tokens), e.engine)
  whole = dataclasses.replace(at, rows=prompts, length=length, dense=_dense(c, length))
  kv = c.num_kv_heads * (c.head_dim + c.value_dim) * c.num_layers * at.width // at.tensor
  return {
    COPIES: _casts(setup, setup.network, at),
    ACTIVATIONS: _layer(c, whole) // 2,  # forward alone
    CACHE_COPY: 2 * prompts * length * kv,  # as the layers give it, and as the cache wants it
  }


def _decode(setup: Setup) -> dict[str, int]:
  """Beside the residents: weights as products read them, and logits of all slots of a device."""
  c, at = setup.decode_model, local(setup)
  leaves = jax.tree.leaves(setup.cache)
  slots = leaves[0].sharding.shard_shape(leaves[0].shape)[0]
  weights = device_bytes((setup.head, setup.layers)) * at.cast // _F32 if at.cast < _F32 else 0
  return {COPIES: weights, LOGITS: 4 * slots * c.vocab_size * _F32}
