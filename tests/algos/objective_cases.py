"""Every policy objective with random trajectories, laid out in rows as a test likes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.algos.aggregate import token_weights
from ptjax.experience.packing import Rows
from ptjax.train.objectives import PolicyBatch, action_loss
from ptjax.train.policy_objective import CorrectionConfig, PolicyObjective

# S: slots of a row, B: rows; the names of a trajectory's values are those of PolicyBatch.
ROWS, SLOTS = 8, 12
VALUES = ("logp", "entropy", "old", "behavior", "reference")


def corrected(kind: str) -> PolicyObjective:
  return PolicyObjective(correction=CorrectionConfig(kind))


OBJECTIVES = {
  "ppo": PolicyObjective(clip_high=0.28, dual_clip=3.0),
  "gspo": PolicyObjective(loss="gspo"),
  "gspo_token": PolicyObjective(loss="gspo_token"),
  "cispo": PolicyObjective(loss="cispo"),
  "dppo_tv": PolicyObjective(loss="dppo_tv", clip_low=0.1, clip_high=0.1),
  "reinforce": PolicyObjective(loss="reinforce"),
  "tis_token": corrected("tis_token"),
  "seq_tis": corrected("seq_tis"),
  "icepop": corrected("icepop"),
  "seq_mask_geo": PolicyObjective(correction=CorrectionConfig("seq_mask_geo", low=0.8, high=1.25)),
  "seq_mask_token_range": corrected("seq_mask_token_range"),
  "kl_k2_and_entropy": PolicyObjective(kl_coef=0.3, entropy_coef=0.1),
  "kl_k3": PolicyObjective(kl_coef=0.3, kl_estimator="k3"),
  "negatives": PolicyObjective(positive_weight=0.1, negative_weight=2.0, negative_drift=0.05),
}


def random_trajectories(lengths, seed: int = 0) -> list[dict]:
  """Log-probs whose ratios fall on both sides of every clip; one advantage a trajectory."""
  rng = np.random.default_rng(seed)
  trajectories = []
  for n in lengths:
    logp = rng.uniform(-2, -0.1, n)
    moved = {name: logp + rng.normal(0, 0.4, n) for name in ("old", "behavior", "reference")}
    values = {"logp": logp, "entropy": rng.uniform(0, 1, n), **moved}
    values = {name: x.astype(np.float32) for name, x in values.items()}
    trajectories.append(values | {"advantage": np.float32(rng.normal())})
  return trajectories


def lay_out(trajectories, weights, rows, garbage=np.nan, gap=1):
  """(logp, entropy, batch): the trajectories `rows[b]` in row b, `gap` unused slots after each.

  Every value at an unused slot is `garbage`.
  """
  arrays = {name: np.full((ROWS, SLOTS), garbage, np.float32) for name in VALUES}
  arrays |= {k: np.full((ROWS, SLOTS), garbage, np.float32) for k in ("weights", "advantages")}
  mask, sequence = np.zeros((ROWS, SLOTS), bool), np.zeros((ROWS, SLOTS), np.int32)
  for b, i, span, number in places(trajectories, rows, gap):
    for name in VALUES:
      arrays[name][b, span] = trajectories[i][name]
    arrays["advantages"][b, span] = trajectories[i]["advantage"]
    arrays["weights"][b, span] = weights[i]
    mask[b, span], sequence[b, span] = True, number
  unused = np.zeros((ROWS, SLOTS), np.int32)
  batch = PolicyBatch(
    Rows(unused, unused, unused, unused, unused, unused, mask, sequence),
    arrays["weights"],
    arrays["advantages"],
    arrays["behavior"],
    arrays["old"],
    arrays["reference"],
  )
  return arrays["logp"], arrays["entropy"], batch


def places(trajectories, rows, gap=1):
  """(row, trajectory, slots, number within the row) of every trajectory."""
  for b, members in enumerate(rows):
    start = 0
    for number, i in enumerate(members):
      stop = start + len(trajectories[i]["logp"])
      yield b, i, slice(start, stop), number
      start = stop + gap


@functools.partial(jax.jit, static_argnames="name")
def loss_and_grads(name, logp_BS, entropy_BS, batch):
  """Loss, and its gradients in the log-probs and the entropies."""

  def loss(logp_BS, entropy_BS):
    return action_loss(OBJECTIVES[name], logp_BS, entropy_BS, batch)[0]

  return jax.value_and_grad(loss, argnums=(0, 1))(logp_BS, entropy_BS)


def by_trajectory(grads, trajectories, rows, gap=1):
  """The gradients of each trajectory, [2, n]; asserts that nothing is left outside of them."""
  left = np.array(grads)
  found = {}
  for b, i, span, _ in places(trajectories, rows, gap):
    found[i] = left[:, b, span].copy()
    left[:, b, span] = 0
  assert np.all(left == 0), "an unused slot has a gradient"
  return found


def weights_for(mode: str, trajectories, domains=None) -> np.ndarray:
  lengths = [len(t["logp"]) for t in trajectories]
  domains = [("a", "b")[i % 2] for i in range(len(lengths))] if domains is None else domains
  return token_weights(
    mode, lengths, l_max=8, constant=16.0, domains_E=domains, shares={"a": 3.0, "b": 1.0}
  )


def as_dtype(batch: PolicyBatch, dtype) -> PolicyBatch:
  """The floats of the batch in another dtype; weights stay what the host made them."""
  return batch._replace(
    **{
      name: jnp.asarray(getattr(batch, name), dtype)
      for name in ("advantages_BA", "behavior_BA", "old_BA", "reference_BA")
    }
  )
