"""The losses of one micro-batch: a policy objective and a value objective.

Both return (loss, metrics). The loss is this micro-batch's share of the loss of the
global batch: the weights hold the global normaliser, so shares simply add up.
"""

from typing import NamedTuple

import jax
import numpy as np

from ptjax.algos.aggregate import weighted_sum
from ptjax.algos.correction import CORRECTIONS, SEQUENCE_CORRECTIONS, mismatch_tokens
from ptjax.algos.kl import kl_loss
from ptjax.algos.negatives import drift_mask, sign_weights
from ptjax.algos.policy_loss import POLICY_LOSSES, SEQUENCE_LOSSES
from ptjax.algos.value_loss import value_loss
from ptjax.core.effective_size import EffectiveSize
from ptjax.core.masked import as_float, fill
from ptjax.core.metrics import Max, Mean
from ptjax.experience.packing import Rows
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Constrain, Params
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.forward import action_logprobs, action_values, routed_logprobs
from ptjax.train.policy_objective import CLIPS, CorrectionConfig, PolicyObjective
from ptjax.train.router import Load, RouterConfig, with_router

Array = jax.Array | np.ndarray  # NumPy until it is placed on the mesh


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
    entropy_coef_B: weight of the entropy bonus, the same in every row, where it changes from step
      to step; None where `PolicyObjective.entropy_coef` holds.
  """

  rows: Rows
  weights_BA: Array
  advantages_BA: Array
  behavior_BA: Array
  old_BA: Array | None
  reference_BA: Array | None
  entropy_coef_B: Array | None = None


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
  """`action_loss` of the policy's log-probs and entropies at the actions of the batch."""
  logp_BA, entropy_BA = action_logprobs(
    model, params, batch.rows, sampling, chunk=objective.logit_chunk, constrain=constrain
  )
  return action_loss(objective, logp_BA, entropy_BA, batch)


def routed_policy_loss(
  params: Params,
  batch: PolicyBatch,
  whole: Load,
  *,
  model: DecoderConfig,
  objective: PolicyObjective,
  sampling: SamplingConfig,
  constrain: Constrain,
  router: RouterConfig,
):
  """`policy_loss` and the auxiliary losses of the routers; `whole` is of the global batch."""
  logp_BA, entropy_BA, routed = routed_logprobs(
    model, params, batch.rows, sampling, chunk=objective.logit_chunk, constrain=constrain
  )
  loss, metrics = action_loss(objective, logp_BA, entropy_BA, batch)
  return with_router(loss, metrics, routed, batch.rows, whole, router)


def action_loss(objective: PolicyObjective, logp_BA, entropy_BA, batch: PolicyBatch):
  """sum over actions of weight * (factors * surrogate + kl_coef KL - entropy_coef H), and metrics.

  The factors are constants: the correction for the sampler, the weight of the sign of the
  advantage, the mask of drift. What stands in unused slots reaches neither value nor gradient.
  """
  mask_BA = batch.rows.mask_BA
  # A ratio of a sequence would carry the gradient of an unused slot to the others.
  batch = batch._replace(advantages_BA=fill(batch.advantages_BA, mask_BA))
  logp_BA, entropy_BA = fill(as_float(logp_BA), mask_BA), fill(as_float(entropy_BA), mask_BA)
  now_BA = jax.lax.stop_gradient(logp_BA)
  old_BA = now_BA if batch.old_BA is None else batch.old_BA
  loss_BA, aux = _surrogate(objective, logp_BA, old_BA, batch)
  constants, constant_metrics = _constants(objective, now_BA, old_BA, batch)
  for constant_BA in constants:
    loss_BA *= constant_BA
  if objective.kl_in_loss:
    loss_BA += objective.kl_coef * kl_loss(logp_BA, batch.reference_BA, objective.estimator)
  if batch.entropy_coef_B is not None:
    loss_BA -= batch.entropy_coef_B[:, None] * entropy_BA
  elif objective.entropy_coef:
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
    "mismatch/ess": EffectiveSize.of(gap["ratio"], mask_BA),
  }
  return loss, metrics | constant_metrics


def _segments(batch: PolicyBatch) -> dict:
  """Which sequence each slot belongs to, as the functions of `algos` want it."""
  num_segments = batch.rows.mask_BA.shape[1]
  return {"segment_ids": batch.rows.sequence_BA, "num_segments": num_segments}


def _surrogate(objective: PolicyObjective, logp_BA, old_BA, batch: PolicyBatch):
  """Loss and clip indicators of each action."""
  settings = {name: getattr(objective, name) for name in sorted(CLIPS[objective.loss])}
  if objective.loss in SEQUENCE_LOSSES:
    settings |= {"mask": batch.rows.mask_BA} | _segments(batch)
  return POLICY_LOSSES[objective.loss](logp_BA, old_BA, batch.advantages_BA, **settings)


def _constants(objective: PolicyObjective, now_BA, old_BA, batch: PolicyBatch):
  """Constant factors of the surrogate, each at most once, and metrics of them."""
  mask_BA, factors, metrics = batch.rows.mask_BA, [], {}
  correction = objective.correction
  if correction.kind != "none":
    extra = _segments(batch) if correction.kind in SEQUENCE_CORRECTIONS else {}
    correct = CORRECTIONS[correction.kind]
    weight_BA = correct(old_BA, batch.behavior_BA, mask_BA, **correction.settings, **extra)
    factors.append(weight_BA)
    metrics["correction/weight_mean"] = Mean.of(weight_BA, mask_BA)
    metrics["correction/dropped_frac"] = Mean.of(weight_BA == 0, mask_BA)
    metrics["correction/ess"] = EffectiveSize.of(weight_BA, mask_BA)
  if (objective.positive_weight, objective.negative_weight) != (1.0, 1.0):
    signs = objective.positive_weight, objective.negative_weight
    factors.append(sign_weights(batch.advantages_BA, *signs))
  if objective.negative_drift is not None:
    keep_BA = drift_mask(
      now_BA,
      batch.behavior_BA,
      batch.advantages_BA,
      mask_BA,
      **_segments(batch),
      limit=objective.negative_drift,
    )
    factors.append(keep_BA)
    metrics["policy/negative_drift_frac"] = Mean.of(keep_BA == 0, mask_BA)
  return factors, metrics


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


__all__ = [
  "CorrectionConfig",
  "PolicyBatch",
  "PolicyObjective",
  "ValueBatch",
  "critic_loss",
  "policy_loss",
]
