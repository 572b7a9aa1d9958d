"""Small models whose sizes tell their arrays apart, and one compiled update of them on a mesh."""

import dataclasses
import functools

import jax
import numpy as np
from train_toys import SMOOTH

from ptjax.experience.packing import Rows
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig, MoeConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.networks import Layout, Trainer
from ptjax.train.objectives import PolicyBatch, PolicyObjective, policy_loss

ROWS, LENGTH, ACTIONS = 16, 24, 12
LLAMA = DecoderConfig(
  vocab_size=320, d_model=64, num_layers=4, num_heads=8, num_kv_heads=8, head_dim=10, d_ff=160,
  ff_parts=1, tie_embeddings=False,
)  # fmt: skip
# Fewer key heads, normalised queries and keys, tied embeddings.
QWEN = dataclasses.replace(
  LLAMA, num_kv_heads=4, qk_norm=True, tie_embeddings=True, rope_theta=1e6, family="qwen3"
)
MIXTRAL = dataclasses.replace(
  LLAMA, family="mixtral", moe=MoeConfig(num_experts=4, top_k=2, d_ff=48)
)


def batch_of(model: DecoderConfig) -> PolicyBatch:
  """Rows of two documents with random tokens and advantages."""
  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(model.vocab_size, size=(ROWS, LENGTH)).astype(np.int32)
  segment_ids_BT = np.broadcast_to(1 + (np.arange(LENGTH) >= 9), (ROWS, LENGTH)).astype(np.int32)
  positions_BT = np.where(segment_ids_BT == 1, np.arange(LENGTH), np.arange(LENGTH) - 9)
  predictor_BA = np.sort(rng.permuted(np.tile(np.arange(LENGTH), (ROWS, 1)), axis=1)[:, :ACTIONS])
  wide = lambda scale: rng.normal(0, scale, (ROWS, ACTIONS)).astype(np.float32)  # noqa: E731
  rows = Rows(
    tokens_BT=tokens_BT,
    positions_BT=positions_BT.astype(np.int32),
    segment_ids_BT=segment_ids_BT,
    branch_ids_BT=np.zeros_like(segment_ids_BT),
    predictor_BA=predictor_BA.astype(np.int32),
    target_BA=rng.integers(model.vocab_size, size=(ROWS, ACTIONS)).astype(np.int32),
    mask_BA=rng.random((ROWS, ACTIONS)) < 0.9,
    sequence_BA=np.zeros((ROWS, ACTIONS), np.int32),
  )
  weights_BA = np.full((ROWS, ACTIONS), 1 / (ROWS * ACTIONS), np.float32)
  return PolicyBatch(rows, weights_BA, wide(5.0), wide(0.1) - 5.8, None, None)


@functools.cache
def parameters(model: DecoderConfig):
  """On the host. Norms and their gradients differ from layer to layer."""
  params = decoder.init_params(model, jax.random.key(0))
  return jax.tree.map(np.asarray, params)


@dataclasses.dataclass(frozen=True)
class Compiled:
  """The compiled gradient of one micro-batch, and the state and batch that it takes."""

  layout: Layout
  trainer: Trainer
  gradient: jax.stages.Compiled
  state: object
  batch: PolicyBatch

  def update(self):
    """(loss, gradient, parameters after the update) on the host."""
    grads, loss, _ = self.gradient(self.state.params, self.batch)
    lowering = self.trainer.lowering(self.state, self.batch)["apply"]()
    kept = jax.tree.map(np.asarray, grads)
    state, _ = lowering.compile()(self.state, grads)
    return float(loss), kept, jax.tree.map(np.asarray, state.params)


def compiled(model: DecoderConfig, devices: int, rules: Rules | None = None, **sizes) -> Compiled:
  mesh = make_mesh(MeshConfig(**sizes), jax.devices()[:devices])
  layout = Layout(mesh, Rules() if rules is None else rules)
  loss = functools.partial(
    policy_loss,
    model=model,
    objective=PolicyObjective(loss="ppo", entropy_coef=0.01),
    sampling=SamplingConfig(),
    constrain=layout.constrain,
  )
  trainer = Trainer(loss, SMOOTH, 1)
  state = trainer.init(layout.place(parameters(model), decoder.logical_axes(model)))
  batch = layout.place_rows(batch_of(model))
  gradient = trainer.lowering(state, batch)["gradient"]().compile()
  return Compiled(layout, trainer, gradient, state, batch)


def whole_arrays(model: DecoderConfig) -> dict[str, tuple[int, ...]]:
  """What no device may gather: each stack of matrices, and activations of all rows."""
  stacks = {
    f"layers{jax.tree_util.keystr(path)}": leaf.shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters(model)["layers"])
    if leaf.ndim > 2
  }
  heads = model.num_heads, model.head_dim
  return stacks | {
    "residual stream": (ROWS, LENGTH, model.d_model),
    "heads": (ROWS, LENGTH, *heads),
    "feed-forward": (ROWS, LENGTH, model.d_ff),
    "logits": (ROWS, ACTIONS, model.vocab_size),
  }
