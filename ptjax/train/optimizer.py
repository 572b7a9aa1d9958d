"""Optimisers with warm-up, decay and clipping by global norm."""

import dataclasses
import re
from typing import Literal

import jax
import optax

from ptjax.train.adam8 import scale_by_adam8
from ptjax.train.narrow_params import with_master, with_stochastic_rounding


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW (Loshchilov and Hutter, 2019), or another with the same settings.

  Attributes:
    kind: `adamw`; `adamw8`, its moments in eight bits (see `train.adam8`); `lion` (Chen et al.,
      2023), which has one moment and wants a learning rate some ten times smaller.
    narrow: what parameters in bfloat16 are updated with, see `train.narrow_params`: a float32
      `master` copy in the optimiser's state, or `stochastic` rounding. `none` for float32.
    learning_rate: after the warm-up.
    warmup_steps: updates over which it rises linearly from one step's share.
    schedule: constant, or linear or cosine decay to 0 over the updates of the run.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: decoupled; on matrices, not on norms, biases and other vectors.
    max_grad_norm: gradients of larger global norm are scaled down to it.
  """

  kind: Literal["adamw", "adamw8", "lion"] = "adamw"
  narrow: Literal["none", "master", "stochastic"] = "none"
  learning_rate: float = 1e-6
  warmup_steps: int = 0
  schedule: Literal["constant", "linear", "cosine"] = "constant"
  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0

  def __post_init__(self):
    if not self.learning_rate >= 0:
      raise ValueError(f"learning_rate {self.learning_rate} must be >= 0")
    if self.warmup_steps < 0:
      raise ValueError(f"warmup_steps {self.warmup_steps} must be >= 0")
    if not self.max_grad_norm > 0:
      raise ValueError(f"max_grad_norm {self.max_grad_norm} must be > 0; a large one never clips")


def learning_rate(config: OptimizerConfig, num_updates: int) -> optax.Schedule:
  """Learning rate of update n, n counted from 0."""
  peak, warmup = config.learning_rate, config.warmup_steps
  rest = max(num_updates - warmup, 1)
  match config.schedule:
    case "constant":
      after = optax.constant_schedule(peak)
    case "linear":
      after = optax.linear_schedule(peak, 0.0, rest)
    case "cosine":
      after = optax.cosine_decay_schedule(peak, rest)
  if warmup == 0:
    return after
  # The first update already moves: it has one share of the peak, not 0.
  rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
  return optax.join_schedules([rise, after], [warmup])


def make_optimizer(
  config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
  """Clipping, then the optimiser at the learning rates of the schedule."""
  made = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), _rule(config, schedule))
  match config.narrow:
    case "master":
      return with_master(made)
    case "stochastic":
      return with_stochastic_rounding(made)
  return made


def _rule(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
  decay = config.weight_decay
  match config.kind:
    case "lion":
      return optax.lion(schedule, config.b1, config.b2, weight_decay=decay, mask=decays)
    case "adamw8":
      return optax.chain(
        scale_by_adam8(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(decay, decays),
        optax.scale_by_learning_rate(schedule),
      )
  return optax.adamw(
    schedule, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=decay, mask=decays
  )


# By name, since a vector of each layer is stacked to a matrix, and one of each head to more.
_VECTORS = re.compile(r".*(scale|norm|bias|sinks|correction)|b[qkvo]")


def decays(params):
  """True for matrices: all but scales of norms, corrections of routers, sinks and biases."""

  def is_matrix(path, leaf) -> bool:
    return leaf.ndim > 1 and not _VECTORS.fullmatch(jax.tree_util.keystr(path[-1:], simple=True))

  return jax.tree_util.tree_map_with_path(is_matrix, params)
