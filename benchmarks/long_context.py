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

from benchmarks.tpu_compile import GIB, collectives, compiled, mesh_of, shaped  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.experience.packing import Rows
from ptjax.kernels.attention import attention
from ptjax.kernels.context import Context, choose
from ptjax.kernels.mask import MaskSpec
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.rules import Rules, tree_shardings
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import PolicyBatch, policy_loss
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.policy_objective import PolicyObjective

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


def attention_figures(topology: str, tokens: int, way: str, layout: str) -> dict[str, object]:
  """Forward and backward of one layer's attention."""
  mesh = mesh_of(topology, context=-1)
  context = Context(mesh, layout_name=layout, way=way)

  def loss(q, k, v, segment, branch, position):
    out = attention(
      q,
      k,
      v,
      mask_spec=MaskSpec(),
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
  layout = Layout(mesh_of(topology, context=-1), Rules(embed=("fsdp", "context")))
  loss = functools.partial(
    policy_loss,
    model=model,
    objective=PolicyObjective(),
    sampling=SamplingConfig(),
    constrain=layout.constrain,
  )
  trainer = Trainer(loss, OptimizerConfig(), 1)
  abstract = jax.eval_shape(lambda: decoder.init_params(model, jax.random.key(0)))
  axes = decoder.logical_axes(model)
  places = tree_shardings(layout.rules, layout.mesh, axes, abstract)
  params = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, places
  )
  found = compiled(trainer._gradient(params), params, _rows(layout, tokens, actions))
  state = 2 * 4 * model.num_params / layout.mesh.size / GIB  # two float32 moments
  return found | {"optimizer": state}


def _rows(layout: Layout, tokens: int, actions: int) -> PolicyBatch:
  def row(size: int, dtype=jnp.int32):
    return shaped(layout.mesh, (1, size), dtype, layout.rules.batch)

  slots = [row(actions), row(actions), row(actions, np.bool_), row(actions)]
  numbers = [row(actions, jnp.float32) for _ in range(3)]
  return PolicyBatch(Rows(*(row(tokens) for _ in range(4)), *slots), *numbers, None, None)


def show(name: str, found: dict[str, object]) -> None:
  text = str(found.pop("text", ""))
  figures = ", ".join(
    f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
  )
  print(f"{name}: {figures}; {collectives(text)}", flush=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("what", choices=("attention", "step"))
  parser.add_argument("--topology", nargs="+", default=["v5p:4x4x4"])
  parser.add_argument("--tokens", nargs="+", type=int, default=[2**20])
  parser.add_argument("--way", default="auto")
  parser.add_argument("--layout", default="zigzag")
  parser.add_argument("--remat", default="attention")
  parser.add_argument("--layers", type=int, default=32)
  parser.add_argument("--actions", type=int, help="action slots; default: one a token")
  a = parser.parse_args()
  for topology in a.topology:
    for tokens in a.tokens:
      name = f"{a.what} {topology} {tokens} tokens"
      if a.what == "attention":
        show(f"{name} {a.layout}", attention_figures(topology, tokens, a.way, a.layout))
        continue
      changes = {"remat": a.remat, "num_layers": a.layers, "context_attention": a.way}
      model = dataclasses.replace(LLAMA_8B, **changes)
      found = step_figures(topology, tokens, a.actions or tokens, model)
      show(f"{name} {a.layers} layers, remat {a.remat}", found)


if __name__ == "__main__":
  main()
