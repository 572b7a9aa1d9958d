"""The losses of one micro-batch: a policy objective and a value objective.

Both return (loss, metrics). The loss is this micro-batch's share of the loss of the
global batch: the weights hold the global normaliser, so shares simply add up.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import numpy as np

from ptjax.algos.aggregate import weighted_sum
from ptjax.algos.correction import mismatch_tokens
from ptjax.algos.kl import kl_loss
from ptjax.algos.policy_loss import POLICY_LOSSES, SEQUENCE_LOSSES
from ptjax.algos.value_loss import value_loss
from ptjax.core.masked import fill
from ptjax.core.metrics import Max, Mean
from ptjax.experience.packing import Rows
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.forward import action_logprobs, action_values

Array = jax.Array | np.ndarray  # NumPy until it is placed on the mesh


@dataclasses.dataclass(frozen=True)
class PolicyObjective:
  """What the policy minimises.

  Attributes:
    loss: ppo (clipped surrogate), gspo, cispo or reinforce.
    clip_low: the ratio is clipped at 1 - clip_low.
    clip_high: and at 1 + clip_high; DAPO's clip-higher sets it above clip_low.
    dual_clip: bound c on the loss of unlikely bad tokens; None for none.
    kl_coef: weight of the KL to the reference in the loss.
    kl_estimator: k2 has the gradient of KL(policy || reference), k3 that of the reverse.
    entropy_coef: weight of the entropy bonus.
    logit_chunk: action slots of a row whose logits exist at a time.
  """

  loss: Literal["ppo", "gspo", "cispo", "reinforce"] = "ppo"
  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float | None = None
  kl_coef: float = 0.0
  kl_estimator: Literal["k2", "k3"] = "k2"
  entropy_coef: float = 0.0
  logit_chunk: int = 256

  def __post_init__(self):
    if not 0 < self.clip_low < 1 or not self.clip_high > 0:
      raise ValueError(
        f"clip_low {self.clip_low} must be in (0, 1) and clip_high {self.clip_high} > 0"
      )
    if self.dual_clip is not None and not self.dual_clip > 1:
      raise ValueError(f"dual_clip {self.dual_clip} must be > 1, or None")
    if self.dual_clip is not None and self.loss != "ppo":
      raise ValueError(f"dual_clip belongs to the ppo loss, not to {self.loss!r}; set it to None")
    if not self.kl_coef >= 0 or not self.entropy_coef >= 0:
      raise ValueError(f"kl_coef {self.kl_coef} and entropy_coef {self.entropy_coef} must be >= 0")
    if self.logit_chunk < 1:
      raise ValueError(f"logit_chunk {self.logit_chunk} must be >= 1")


class PolicyBatch(NamedTuple):
  """One micro-batch of the policy.

  Attributes:
    rows: packed rows.
    weights_BA: share of each action in the loss of the global batch.
    advantages_BA: advantage of each action.
    behavior_BA: log-prob that the sampler reported.
    old_BA: log-prob under the policy before this batch's first update; None means the
      policy itself, the only update being the first.
    reference_BA: log-prob under the reference; None where no KL is in the loss.
  """

  rows: Rows
  weights_BA: Array
  advantages_BA: Array
  behavior_BA: Array
  old_BA: Array | None
  reference_BA: Array | None


class ValueBatch(NamedTuple):
  """One micro-batch of the critic: returns to predict, and its values before the update."""

  rows: Rows
  weights_BA: Array
  returns_BA: Array
  old_values_BA: Array


def policy_loss(
  params: Params,
  batch: PolicyBatch,
  *,
  model: DecoderConfig,
  objective: PolicyObjective,
  sampling: SamplingConfig,
  constrain: Constrain,
):
  """sum over actions of weight * (surrogate + kl_coef KL - entropy_coef H), and metrics."""
  mask_BA = batch.rows.mask_BA
  logp_BA, entropy_BA = action_logprobs(
    model, params, batch.rows, sampling, chunk=objective.logit_chunk, constrain=constrain
  )
  logp_BA, entropy_BA = fill(logp_BA, mask_BA), fill(entropy_BA, mask_BA)
  now_BA = jax.lax.stop_gradient(logp_BA)
  old_BA = now_BA if batch.old_BA is None else batch.old_BA
  loss_BA, aux = _surrogate(objective, logp_BA, old_BA, batch)
  if objective.kl_coef:
    loss_BA += objective.kl_coef * kl_loss(logp_BA, batch.reference_BA, objective.kl_estimator)
  if objective.entropy_coef:
    loss_BA -= objective.entropy_coef * entropy_BA
  loss = weighted_sum(loss_BA, batch.weights_BA, mask_BA)

  gap = mismatch_tokens(old_BA, batch.behavior_BA, mask_BA)
  metrics = {
    "policy/entropy": Mean.of(entropy_BA, mask_BA),
    "policy/ratio_mean": Mean.of(aux["ratio"], mask_BA),
    "policy/clip_frac_low": Mean.of(aux["clip_low"], mask_BA),
    "policy/clip_frac_high": Mean.of(aux["clip_high"], mask_BA),
    "mismatch/kl": Mean.of(gap["kl_k3"], mask_BA),
    "mismatch/ratio_max": Max.of(gap["ratio"], mask_BA),
  }
  return loss, metrics


def _surrogate(objective: PolicyObjective, logp_BA, old_BA, batch: PolicyBatch):
  """Loss and clip indicators of each action."""
  settings = {
    "ppo": {
      "clip_low": objective.clip_low,
      "clip_high": objective.clip_high,
      "dual_clip": objective.dual_clip,
    },
    "gspo": {"clip_low": objective.clip_low, "clip_high": objective.clip_high},
    "cispo": {"clip_high": objective.clip_high},
    "reinforce": {},
  }[objective.loss]
  if objective.loss in SEQUENCE_LOSSES:
    settings |= {
      "mask": batch.rows.mask_BA,
      "segment_ids": batch.rows.sequence_BA,
      "num_segments": batch.rows.mask_BA.shape[1],
    }
  return POLICY_LOSSES[objective.loss](logp_BA, old_BA, batch.advantages_BA, **settings)


def critic_loss(
  params: Params,
  batch: ValueBatch,
  *,
  model: DecoderConfig,
  clip: float | None,
  constrain: Constrain,
):
  """sum over actions of weight * clipped value loss, and metrics."""
  mask_BA = batch.rows.mask_BA
  values_BA = fill(action_values(model, params, batch.rows, constrain), mask_BA)
  loss_BA, aux = value_loss(values_BA, batch.old_values_BA, batch.returns_BA, clip=clip)
  metrics = {
    "value/loss": Mean.of(jax.lax.stop_gradient(loss_BA), mask_BA),
    "value/clip_frac": Mean.of(aux["clipped"], mask_BA),
    "value/mean": Mean.of(jax.lax.stop_gradient(values_BA), mask_BA),
  }
  return weighted_sum(loss_BA, batch.weights_BA, mask_BA), metrics
