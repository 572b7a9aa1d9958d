"""AdamW with warm-up, decay and clipping by global norm."""

import dataclasses
from typing import Literal

import jax
import optax


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW (Loshchilov and Hutter, 2019).

  Attributes:
    learning_rate: after the warm-up.
    warmup_steps: updates over which it rises linearly from one step's share.
    schedule: constant, or linear or cosine decay to 0 over the updates of the run.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: decoupled; on matrices, not on norms and other vectors.
    max_grad_norm: gradients of larger global norm are scaled down to it.
  """

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
  """Clipping, then AdamW at the learning rates of the schedule."""
  return optax.chain(
    optax.clip_by_global_norm(config.max_grad_norm),
    optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      eps=config.eps,
      weight_decay=config.weight_decay,
      mask=_decays,
    ),
  )


def _decays(params):
  """True for matrices: all but scales of norms, corrections of routers, and biases."""

  def is_matrix(path, leaf) -> bool:
    name = jax.tree_util.keystr(path)
    return leaf.ndim > 1 and "scale" not in name and "correction" not in name

  return jax.tree_util.tree_map_with_path(is_matrix, params)
