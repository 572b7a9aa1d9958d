"""What a million tokens take on TPUs, by their compiler; no TPU is needed.

    python -m benchmarks.long_context attention [--topology v5p:4x4x4] [--tokens 1048576]
    python -m benchmarks.long_context step --remat attention [--layers 32] [--actions N]

`attention` is one layer's attention, forward and backward, of Llama-3.1-8B (32 query and 8
key/value heads of 128, bfloat16); `step` the gradient of its GRPO loss as the trainer compiles
it, with the optimiser's state counted beside it. Peak is the compiler's own figure for a device.
"""

import argparse
import dataclasses
import functools
import math

from benchmarks.tpu_compile import GIB, compiled, mesh_of, shaped  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tpu_compile import collectives, compiled_lowering, spans
from ptjax.experience.packing import Rows
from ptjax.kernels.attention import attention
from ptjax.kernels.context import Context, choose
from ptjax.kernels.mask import MaskSpec
from ptjax.kernels.ring import TRANSFERS, Transfer
from ptjax.kernels.sparse import Pattern
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.rules import Rules, tree_shardings
from ptjax.train.networks import Layout, Trainer, critic_axes, critic_params, sharded_shape
from ptjax.train.objectives import PolicyBatch, ValueBatch, critic_loss, policy_loss
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.policy_objective import PolicyObjective
from ptjax.train.programs import score_rows, value_rows

LLAMA_8B = DecoderConfig(
  vocab_size=128_256,
  d_model=4096,
  num_layers=32,
  num_heads=32,
  num_kv_heads=8,
  head_dim=128,
  d_ff=14_336,
  rope_theta=500_000.0,
  tie_embeddings=False,
  max_position=2**22,
  matmul_dtype="bfloat16",
  activation_dtype="bfloat16",
  ff_parts=1,
)


def attention_figures(
  topology: str,
  tokens: int,
  way: str,
  layout: str,
  pattern: Pattern | None = None,
  transfer: Transfer = "xla",
) -> dict[str, object]:
  """Forward and backward of one layer's attention."""
  mesh = mesh_of(topology, context=-1)
  context = Context(mesh, layout_name=layout, way=way, transfer=transfer)

  def loss(q, k, v, segment, branch, position):
    out = attention(
      q,
      k,
      v,
      mask_spec=MaskSpec(pattern=pattern),
      segment_ids_BT=segment,
      branch_ids_BT=branch,
      positions_BT=position,
      context=context,
    )
    return jnp.sum(out.astype(jnp.float32))

  heads = [shaped(mesh, (1, tokens, n, 128), jnp.bfloat16, None, "context") for n in (32, 8, 8)]
  ids = [shaped(mesh, (1, tokens), jnp.int32, None, "context")] * 3
  found = compiled(jax.jit(jax.grad(loss, argnums=(0, 1, 2))), *heads, *ids)
  return found | {"choice": choose(way, context.chip, tokens // mesh.size, 32, 8)}


def step_figures(topology: str, tokens: int, actions: int, model: DecoderConfig):
  """The gradient of the GRPO loss over one row; every parameter cut over all devices."""
  layout = _layout(topology)
  trainer, params = _policy(layout, model)
  batch = _policy_batch(layout, tokens, actions)
  found = compiled(trainer._gradient(params), params, batch)
  state = 2 * 4 * model.num_params / layout.mesh.size / GIB  # two float32 moments
  return found | {"optimizer": state}


def ppo_figures(topology: str, tokens: int, actions: int, model: DecoderConfig):
  """Each program of a PPO step over one row: policy, critic of the same size, and reference.

  `beside` is what else is on the device while it runs: weights and moments that are not its
  arguments. The step takes the most of a program and what is beside it.
  """
  layout = _layout(topology)
  policy, params = _policy(layout, model)
  trunk = dataclasses.replace(model, tie_embeddings=True)
  loss = functools.partial(critic_loss, model=trunk, clip=0.2, constrain=layout.constrain)
  critic, critic_params = Trainer(loss, OptimizerConfig(), 1), _abstract_critic(layout, trunk)
  rows = _row_arrays(layout, tokens, actions)
  numbers = [_row(layout, actions, jnp.float32)] * 3
  states = policy.abstract(params), critic.abstract(critic_params)
  held = sum(_bytes(x) for x in (*states, params)) / GIB  # the reference is as large as the policy
  policy_programs = policy.lowering(states[0], _policy_batch(layout, tokens, actions))
  critic_programs = critic.lowering(states[1], ValueBatch(rows, *numbers))
  score = functools.partial(score_rows.lower, model, SamplingConfig(), 256, layout, params, rows)
  value = functools.partial(value_rows.lower, trunk, layout, critic_params, rows)
  programs = {
    "policy gradient": (policy_programs["gradient"], _bytes(params)),
    "policy update": (policy_programs["apply"], _bytes(states[0])),
    "critic gradient": (critic_programs["gradient"], _bytes(critic_params)),
    "critic update": (critic_programs["apply"], _bytes(states[1])),
    "log-probs": (score, _bytes(params)),
    "values": (value, _bytes(critic_params)),
  }
  for name, (lower, arguments) in programs.items():
    yield name, compiled_lowering(lower) | {"beside": held - arguments / GIB}


def _layout(topology: str) -> Layout:
  return Layout(mesh_of(topology, context=-1), Rules(embed=("fsdp", "context")))


def _policy(layout: Layout, model: DecoderConfig):
  """(its trainer, its parameters as placed shapes)."""
  loss = functools.partial(
    policy_loss,
    model=model,
    objective=PolicyObjective(),
    sampling=SamplingConfig(),
    constrain=layout.constrain,
  )
  return Trainer(loss, OptimizerConfig(), 1), _placed(layout, model)


def _placed(layout: Layout, model: DecoderConfig):
  abstract = jax.eval_shape(lambda: decoder.init_params(model, jax.random.key(0)))
  places = tree_shardings(layout.rules, layout.mesh, decoder.logical_axes(model), abstract)
  return jax.tree.map(sharded_shape, abstract, places)


def _abstract_critic(layout: Layout, trunk: DecoderConfig):
  abstract = jax.eval_shape(lambda x: critic_params(x, trunk.num_layers), _placed(layout, trunk))
  places = tree_shardings(layout.rules, layout.mesh, critic_axes(trunk), abstract)
  return jax.tree.map(sharded_shape, abstract, places)


def _bytes(tree) -> int:
  """On one device."""
  shard = lambda x: math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize  # noqa: E731
  return sum(shard(x) for x in jax.tree.leaves(tree))


def _row(layout: Layout, size: int, dtype=jnp.int32):
  return shaped(layout.mesh, (1, size), dtype, layout.rules.batch)


def _row_arrays(layout: Layout, tokens: int, actions: int) -> Rows:
  slots = [_row(layout, actions, t) for t in (jnp.int32, jnp.int32, np.bool_, jnp.int32)]
  return Rows(*(_row(layout, tokens) for _ in range(4)), *slots)


def _policy_batch(layout: Layout, tokens: int, actions: int) -> PolicyBatch:
  numbers = [_row(layout, actions, jnp.float32)] * 3
  return PolicyBatch(_row_arrays(layout, tokens, actions), *numbers, None, None)


def show(name: str, found: dict[str, object]) -> None:
  text = str(found.pop("text", ""))
  figures = ", ".join(
    f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
  )
  hidden = {
    kind: f"{sum(n > 0 for n in all_)} of {len(all_)}" for kind, all_ in spans(text).items()
  }
  print(f"{name}: {figures}; {collectives(text)}; under a kernel: {hidden}", flush=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("what", choices=("attention", "step", "ppo"))
  parser.add_argument("--topology", nargs="+", default=["v5p:4x4x4"])
  parser.add_argument("--tokens", nargs="+", type=int, default=[2**20])
  parser.add_argument("--way", default="auto")
  parser.add_argument("--layout", default="zigzag")
  parser.add_argument("--transfer", choices=TRANSFERS, default="xla")
  parser.add_argument("--remat", default="attention")
  parser.add_argument("--ff-chunk", type=int)
  parser.add_argument("--layers", type=int, default=32)
  parser.add_argument("--actions", type=int, help="action slots; default: one a token")
  a = parser.parse_args()
  for topology in a.topology:
    for tokens in a.tokens:
      name = f"{a.what} {topology} {tokens} tokens"
      if a.what == "attention":
        figures = topology, tokens, a.way, a.layout, None, a.transfer
        show(f"{name} {a.layout}", attention_figures(*figures))
        continue
      changes = {"remat": a.remat, "num_layers": a.layers, "context_attention": a.way}
      changes |= {"context_transfer": a.transfer}
      changes |= {"ff_chunk": a.ff_chunk}
      model = dataclasses.replace(LLAMA_8B, **changes)
      name += f" {a.layers} layers, remat {a.remat}, ff_chunk {a.ff_chunk}"
      if a.what == "step":
        show(name, step_figures(topology, tokens, a.actions or tokens, model))
        continue
      most = 0.0
      for program, found in ppo_figures(topology, tokens, a.actions or tokens, model):
        most = max(most, found.get("peak", math.inf) + found["beside"])
        show(f"{name}, {program}", found)
      print(f"{name}: the step takes {most:.2f} GiB", flush=True)


if __name__ == "__main__":
  main()
